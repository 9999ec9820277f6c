package openwhisk

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

// soon is a policy that has every function called again after a while.
type soon time.Duration

func (soon) Remembers() time.Duration { return time.Hour }
func (s soon) Window(*pool.Idles) pool.Window {
	return pool.Window{PreWarm: time.Duration(s), KeepAlive: time.Minute}
}

func newForeseeing(t *testing.T, after time.Duration) (c *client, started chan *api.StartRequest) {
	c = newClientOf(t, Config{
		Blocking: time.Minute,
		Pool: pool.Config{KeepAlive: time.Minute, Wait: 5 * time.Second, Start: time.Minute,
			Policy: soon(after)},
	})
	started = make(chan *api.StartRequest, 16)
	c.node.start = func(in *api.StartRequest) (*api.StartReply, error) {
		started <- in
		c.node.mu.Lock()
		defer c.node.mu.Unlock()
		c.node.live[in.Id] = true
		return &api.StartReply{Id: in.Id, Driver: "sim", InitStatus: 200}, nil
	}
	c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		return reply(200, `{}`), nil
	}
	c.node.forgetful = true
	return c, started
}

// The arguments of a call are forgotten with its end, however long its function is remembered.
func TestAFunctionIsRememberedWithoutItsLastCall(t *testing.T) {
	c, _ := newForeseeing(t, time.Hour)
	live := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const functions = 16
	for n := range functions {
		c.put(fmt.Sprint("f", n))
	}
	before := live()
	for n := range functions {
		c.want(200, c.do("POST", fmt.Sprintf("actions/f%d?blocking=true", n), large))
	}
	c.api.running.Wait()
	if after := live(); after > before+functions<<20/2 {
		t.Errorf("after %d calls of 1 MiB have ended %d KiB more are in memory", functions,
			(after-before)>>10)
	}
}

// A sandbox that is started before the next call is told nothing of the last one.
func TestASandboxBeforeItsCallIsToldOfNone(t *testing.T) {
	c, started := newForeseeing(t, time.Millisecond)
	c.want(200, c.do("PUT", "actions/f", strings.Replace(hello, "{",
		`{"annotations":[{"key":"provide-api-key","value":true}],"parameters":[{"key":"a","value":"b","init":true}],`,
		1)))
	c.want(200, c.do("POST", "actions/f?blocking=true", "{}"))
	called, ahead := <-started, <-started
	for _, of := range []string{"__OW_ACTIVATION_ID", "__OW_DEADLINE", "__OW_TRANSACTION_ID",
		"__OW_API_KEY"} {
		if !strings.Contains(string(called.Init), of) || strings.Contains(string(ahead.Init), of) {
			t.Errorf("%s: of a call %s\nof none %s", of, called.Init, ahead.Init)
		}
	}
	for _, same := range []string{`"__OW_NAMESPACE":"guest"`, `"__OW_ACTION_NAME":"/guest/f"`,
		`"a":"b"`, `def main`} {
		if !strings.Contains(string(called.Init), same) ||
			!strings.Contains(string(ahead.Init), same) {
			t.Errorf("%s: of a call %s\nof none %s", same, called.Init, ahead.Init)
		}
	}
	if called.Image != ahead.Image {
		t.Errorf("of a call %v\nof none %v", called, ahead)
	}
}
