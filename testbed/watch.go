package testbed

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// errStands means that no time passes in a host, or that it does not answer.
var errStands = errors.New("time stands still in the host")

// watch lets the host sleep for a moment, again and again. When that takes longer than limit, watch
// ends the connection, and with it every command in the host. stop ends the watch, and returns
// errStands if it has ended the connection.
//
// A host under emulation that ran a nested guest has stood still for 17 minutes once: its sshd
// answered, but no timer went off. What the tests do inside cannot cause that, so Inside boots
// another host, unless it runs our own kernel.
func (h *Host) watch(limit time.Duration) (stop func() error) {
	var stands error
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			asleep := make(chan struct{})
			go func() {
				defer close(asleep)
				if s, err := h.client.NewSession(); err == nil {
					_ = s.Run("sleep 0.01")
					s.Close()
				}
			}()
			select {
			case <-asleep:
			case <-ended:
				return
			case <-time.After(limit):
				stands = fmt.Errorf("%w: it did not sleep for 10 ms within %v", errStands, limit)
				h.Close()
				return
			}
			select {
			case <-ended:
				return
			case <-time.After(limit / 4):
			}
		}
	})
	return func() error {
		close(ended)
		wg.Wait()
		return stands
	}
}
