package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/invoker/openwhisk"
)

// TestACrashBreaksNoPromise kills the process without warning while activations are under way, again and again. Whatever was answered
// with 202 ends in exactly one record.
func TestACrashBreaksNoPromise(t *testing.T) {
	const rounds, calls = 3, 60
	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	address := listenLater(t)
	up := []string{"up", "--sandbox", "sim", "--listen", address, "--metrics", "", "--run-dir", run, "--state-dir", dir}
	key, err := openwhisk.LoadKey(address, "")
	if err != nil {
		t.Fatal(err)
	}
	call := func(method, path, body string, into any) (status int) {
		request, err := http.NewRequest(method, "http://"+address+"/api/v1/namespaces/_/"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.SetBasicAuth(key.UUID, key.Secret)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0 // killed in the middle of it: nothing was promised
		}
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		if err != nil || json.Unmarshal(content, into) != nil {
			return 0
		}
		return response.StatusCode
	}
	var promised []string
	for round := range rounds {
		must(t, up...)
		if status := call("PUT", "actions/late?overwrite=true", helloAction, new(any)); status != 200 {
			t.Fatal(status)
		}
		if status := call("PUT", "actions/chain?overwrite=true", `{"exec":{"kind":"sequence","components":["late","late"]}}`, new(any)); status != 200 {
			t.Fatal(status)
		}
		var all sync.WaitGroup
		var mu sync.Mutex
		half := make(chan struct{})
		for n := range calls {
			all.Go(func() {
				var answer struct{ ActivationID string }
				// Some end before the kill, some are sent and some still queue.
				if call("POST", "actions/"+[]string{"late", "chain"}[n%2], fmt.Sprintf(`{"sleep_ms":%d}`, n*20), &answer) != 202 {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if promised = append(promised, answer.ActivationID); len(promised) == round*calls+calls/2 {
					close(half)
				}
			})
		}
		<-half
		pid, process, err := serverOf(filepath.Join(run, "node.sock"))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != nil {
			t.Fatal(pid, err)
		}
		all.Wait()
		unix.Close(process)
		for len(promised) < (round+1)*calls { // those that were not promised count for nothing; the next round counts from here
			promised = append(promised, "")
		}
	}
	must(t, up...)
	t.Cleanup(func() { _ = fastiov(t, "down", "--run-dir", run).Run() })
	for _, id := range promised {
		if id == "" {
			continue
		}
		var record struct {
			Response struct{ Status string }
		}
		for end := time.Now().Add(time.Minute); call("GET", "activations/"+id, "", &record) != 200; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s was promised and has no record", id)
			}
		}
		if s := record.Response.Status; s != "success" && s != "whisk internal error" {
			t.Errorf("%s: %s", id, s)
		}
	}
}
