//go:build cni

package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/cni/attach"
	"github.com/fastiov/fastiov/node-agent/cni/cnitest"
	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// asAgent has this binary be an agent over the card's VFs, with that run directory.
const asAgent = "FASTIOV_TEST_CNI_AGENT"

func init() {
	run := os.Getenv(asAgent)
	if run == "" {
		return
	}
	node, err := agentOf(run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("serves")
	_, _ = io.Copy(io.Discard, os.Stdin)
	node.Stop()
	os.Exit(0)
}

func agentOf(run string) (*cnitest.Node, error) {
	return cnitest.Start(vf.Config{PFs: []string{"igb"}, NetdevVFs: 3, Run: run}, nil,
		attach.Kernel())
}

// A siege has containers come and go while agents are killed, one after the other.
type siege struct {
	*testing.T
	run   string
	over  chan struct{}
	kills atomic.Int64

	mu  sync.Mutex
	has map[string]string // VF → its container
}

// killed runs so many pairs of ADD and DEL, by the plugin, under agents that are killed at any
// time. No VF is given twice, none is lost.
func killed(t *testing.T, run string, pairs int) {
	s := &siege{T: t, run: run, over: make(chan struct{}), has: map[string]string{}}
	var agents, workers sync.WaitGroup
	agents.Go(s.agents)
	const many = 2
	for w := range many {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for n := 0; n < pairs/many || s.kills.Load() < leastKills; n++ {
				if !s.pair(random, fmt.Sprint("k", w)) {
					return
				}
			}
		})
	}
	workers.Wait()
	close(s.over)
	agents.Wait()
	t.Logf("%d pairs, %d agents killed", pairs, s.kills.Load())
	node, err := agentOf(run)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := node.Idle(ctx, igbVFs); err != nil {
		t.Errorf("VFs are lost: %v", err)
	}
}

// So many agents are killed however few the pairs are.
const leastKills = 3

// agents starts one agent after the other, and kills each.
func (s *siege) agents() {
	runtime.LockOSThread() // which the agents end with
	random := rand.New(rand.NewPCG(1, 2))
	for {
		select {
		case <-s.over:
			return
		case <-time.After(time.Duration(random.IntN(300)) * time.Millisecond): // it is away
		}
		agent := exec.Command("/proc/self/exe")
		agent.Env = append(os.Environ(), asAgent+"="+s.run)
		agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
		input, _ := agent.StdinPipe()
		serves, _ := agent.StdoutPipe()
		var said bytes.Buffer
		agent.Stderr = &said
		if err := agent.Start(); err != nil {
			s.Error(err)
			return
		}
		if random.IntN(3) > 0 { // else it may be killed before it serves
			_, _ = serves.Read(make([]byte, 1))
		}
		kill := time.AfterFunc(time.Duration(random.IntN(4000))*time.Millisecond,
			func() { _ = agent.Process.Kill() })
		_ = agent.Wait()
		input.Close()
		if s.kills.Add(1); kill.Stop() {
			s.Errorf("an agent ended by itself: %s", said.String())
			return
		}
	}
}

// pair has a container come and go, and reports whether it could.
func (s *siege) pair(random *rand.Rand, container string) bool {
	file, path, end := box(s.T, container)
	defer end()
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"fastiov","runDir":%q%s}`, s.run,
		[]string{``, `,"driver":"vfio"`, `,"vlan":7`}[random.IntN(3)])
	out, err := s.until(func() ([]byte, error) { return s.plugin("ADD", container, path, conf) })
	if err != nil {
		s.Errorf("ADD: %v", err)
		return false
	}
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil || len(result.Interfaces) != 1 {
		s.Errorf("the result is %s: %v", out, err)
		return false
	}
	device := result.Interfaces[0].PciID
	s.mu.Lock()
	if other := s.has[device]; other != "" {
		s.Errorf("%s is given to %s, and %s has it", device, container, other)
	}
	s.has[device] = container
	s.mu.Unlock()
	time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
	if err := netns.Inside(file, func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil && !strings.Contains(conf, "vfio") &&
			link.Attrs().HardwareAddr.String() != result.Interfaces[0].Mac {
			err = fmt.Errorf("it has the MAC %s, not %s", link.Attrs().HardwareAddr,
				result.Interfaces[0].Mac)
		}
		return err
	}); err != nil {
		s.Errorf("the interface of %s over %s: %v", container, device, err)
	}
	s.mu.Lock() // before the pool may have it back
	maps.DeleteFunc(s.has, func(_, has string) bool { return has == container })
	s.mu.Unlock()
	if random.IntN(3) == 0 {
		end()
	}
	if _, err := s.until(func() ([]byte, error) {
		return s.plugin("DEL", container, path, conf)
	}); err != nil {
		s.Errorf("DEL: %v", err)
		return false
	}
	return true
}

// until repeats what may meet no agent, or one that is killed under it, or VFs that are being
// reset. A runtime ends what an ADD has begun before it tries again.
func (s *siege) until(does func() ([]byte, error)) (out []byte, err error) {
	for late := time.Now().Add(2 * time.Minute); time.Now().Before(late); {
		if out, err = does(); err == nil {
			return out, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, err
}

func (s *siege) plugin(command, container, netns, conf string) ([]byte, error) {
	run := func(command string) ([]byte, error) {
		cmd := exec.Command("/share/" + pluginName)
		cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container,
			"CNI_IFNAME=eth0", "CNI_PATH=/share", "CNI_NETNS=" + netns}
		cmd.Stdin = strings.NewReader(conf)
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return out, err
	}
	out, err := run(command)
	if err != nil && command == "ADD" {
		_, undone := s.until(func() ([]byte, error) { return run("DEL") })
		err = errors.Join(err, undone)
	}
	return out, err
}
