package agent

import (
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// A drain that waits for a slow end is undone by somebody else: it returns at once, and ends
// nothing that starts from then on.
func TestADrainThatIsUndoneEndsNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, d, _ := newAgent(t)
		a.Starter.Admission = startup.NewAdmission(1000, nil)
		recordsOf(t, a, "slow")
		let := make(chan struct{})
		d.ending = func(string) { <-let }
		settled := make(chan struct{})
		settle := a.Adopt(t.Context())
		go func() { defer close(settled); settle() }()
		synctest.Wait()

		drained := make(chan error, 1)
		go func() {
			_, err := a.Drain(t.Context(), &api.DrainRequest{Cancel: true})
			drained <- err
		}()
		synctest.Wait()
		if _, err := a.Drain(t.Context(), &api.DrainRequest{Undo: true}); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"x", "y"} {
			if _, err := start(t, a, id); err != nil {
				t.Errorf("a start after the drain was undone: %v", err)
			}
		}
		synctest.Wait()
		select {
		case err := <-drained:
			if status.Code(err) != codes.Aborted {
				t.Errorf("the drain that was undone: %v", err)
			}
		default:
			t.Error("the drain that was undone still waits")
		}
		close(let)
		<-settled
		synctest.Wait()
		for _, id := range []string{"x", "y"} {
			if s := statusOf(t, a, id); s.GetState() != ready {
				t.Errorf("%s is %v", id, s)
			}
		}
		if _, err := a.Drain(t.Context(), &api.DrainRequest{Cancel: true}); err != nil {
			t.Error(err)
		}
	})
}
