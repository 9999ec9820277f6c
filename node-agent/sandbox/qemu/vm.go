package qemu

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
	"github.com/fastiov/fastiov/node-agent/sandbox/life"
)

// A vm is one microVM, from the moment its cell exists. It implements sandbox.Sandbox.
type vm struct {
	*life.Life
	spec    sandbox.Spec
	cell    *jail.Cell
	secret  door.Secret // shared by its guest and us
	ports   atomic.Bool // the guest's door leads to each port
	conn    *guest.Conn // nil if there was no CID for it
	ram     memory
	args    []string       // of its VMM; nil where it was adopted
	resumed chan time.Time // the guest's first instruction
	turning chan struct{}  // holds one while a pause or resume is under way
	told    chan error     // why QEMU's guest ended

	mu      sync.Mutex
	qmp     *qmp // nil until connected
	gone    bool // no connection is wanted any more
	pausing bool // we asked for the next STOP
	late    late
}

// A late holds what is to be told of a start whose VF comes up beside the program.
type late struct {
	gated  bool
	spans  int                 // of the guest that the start's timeline has
	memory *timeline.Footprint // at BusMaster
}

func newVM(spec sandbox.Spec, cell *jail.Cell, secret door.Secret) *vm {
	return &vm{Life: life.New(), spec: spec, cell: cell, secret: secret,
		resumed: make(chan time.Time, 1), turning: make(chan struct{}, 1),
		told: make(chan error, 1)}
}

// watch starts the goroutine that notices the end, or brings it about, and takes everything down.
func (v *vm) watch() {
	var hungUp <-chan struct{}
	if v.conn != nil {
		hungUp = v.conn.Done()
	}
	go func() {
		select {
		case <-v.Context().Done():
		case <-v.cell.Done():
			v.End(fmt.Errorf("its VMM ended by itself: %s", v.cell.How()))
		// We have closed the driver, so there is no error: this vm belongs to a later agent.
		case <-hungUp:
			v.End(cmp.Or(v.conn.Err(), sandbox.ErrLetGo))
		}
		if v.Cause() == sandbox.ErrLetGo {
			v.letGo()
		} else {
			v.takeDown()
		}
	}()
}

func (v *vm) takeDown() {
	fell := v.fell()
	v.cell.Close()
	if v.conn != nil {
		v.conn.Close()
	}
	v.disconnect()
	v.ram.close()
	_ = os.Remove(controlSocket(v.spec))
	v.Over(func(cause error) error {
		testify(v.spec, v.args, v.cell.Events())
		return fmt.Errorf("%w%s%s%s", cause, fell, v.refused(cause.Error()+fell),
			evidence(v.spec))
	})
}

// tellsWithin is the time that QEMU gets to tell why its guest hung up. When a guest falls, its
// connection often ends first.
const tellsWithin = time.Second

// fell returns a text that says why a guest hung up, if that shows in time.
func (v *vm) fell() string {
	v.mu.Lock()
	q := v.qmp
	v.mu.Unlock()
	if q == nil || !errors.Is(v.Cause(), guest.ErrHungUp) {
		return ""
	}
	late := time.After(tellsWithin)
	select {
	case why := <-v.told:
		return "; " + why.Error()
	case <-q.done: // it tells no more
	case <-late:
		return ""
	}
	if len(v.told) > 0 {
		return "; " + (<-v.told).Error()
	}
	select {
	case <-v.cell.Done():
		return "; its VMM ended, too: " + v.cell.How()
	case <-late:
		return ""
	}
}

// refused returns a text that says that a filter ended the VMM, if what was said only followed from
// that, as a closed connection does.
func (v *vm) refused(said string) string {
	if how := v.cell.How(); strings.HasPrefix(how, jail.BySeccomp) &&
		!strings.Contains(said, how) {
		return "; its VMM was " + how
	}
	return ""
}

func (v *vm) letGo() {
	if v.conn != nil {
		v.conn.Close()
	}
	v.disconnect()
	v.ram.close()
	v.cell.LetGo()
	v.Over(func(cause error) error { return cause })
}

func (v *vm) disconnect() {
	v.mu.Lock()
	v.gone = true
	q := v.qmp
	v.mu.Unlock()
	if q != nil {
		q.close()
	}
	v.HangUp()
}

// take keeps the control connection, or closes it if the vm has ended meanwhile.
func (v *vm) take(q *qmp) bool {
	v.mu.Lock()
	gone := v.gone
	if !gone {
		v.qmp = q
	}
	v.mu.Unlock()
	if gone {
		q.close() // waits for the reader, whose event may want the lock
	}
	return !gone
}

// onEvent hears what QEMU tells unasked.
func (v *vm) onEvent(e event) {
	switch e.Name {
	case "RESUME":
		select {
		case v.resumed <- e.At:
		default:
		}
	case "GUEST_PANICKED":
		v.tell(errors.New("its guest kernel panicked"))
	case "SHUTDOWN":
		v.tell(fmt.Errorf("its guest ended (%.40s)", strings.Map(printable, e.Data.Reason)))
	case "STOP":
		v.mu.Lock()
		asked := v.pausing
		v.pausing = false
		v.mu.Unlock()
		if !asked {
			v.tell(whyStopped(v.spec))
		}
	}
}

// tell ends the vm for a reason that QEMU told.
func (v *vm) tell(why error) {
	select {
	case v.told <- why:
	default:
	}
	v.End(why)
}

// vfFailed is in the line that QEMU's VFIO driver writes before it stops a guest whose VF reported
// an error. A guest that KVM cannot run is stopped too; its own code may bring that about, so it
// must not count against the VF.
const vfFailed = "Unrecoverable error detected"

// whyStopped says why a VMM stopped its guest unasked.
func whyStopped(spec sandbox.Spec) error {
	if last := lastLines(vmmLog(spec), 1); spec.PCI() != nil && strings.Contains(last, vfFailed) {
		return &sandbox.NICFault{Why: "QEMU stopped the guest: " + last}
	}
	return errors.New("its VMM stopped the guest: KVM cannot run it")
}

// Weigh implements sandbox.Weigher.
func (v *vm) Weigh(at timeline.Moment) (timeline.Footprint, error) { return v.ram.weigh(at) }

// Gate implements sandbox.Gated.
func (v *vm) Gate() (timeline.Gate, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.late.gated {
		return timeline.Gate{}, false
	}
	g := v.conn.Gate()
	if !g.Open {
		return g, true
	}
	for _, s := range v.conn.Spans()[v.late.spans:] {
		// whatever the guest says, nothing of it is after the opening or ends before it begins
		s.End = earlier(s.End, g.Opened)
		s.Begin = earlier(s.Begin, s.End)
		g.Spans = append(g.Spans, s)
	}
	g.Memory = v.late.memory
	return g, true
}

// Opened implements sandbox.Gated.
func (v *vm) Opened() <-chan struct{} {
	if !v.late.gated {
		return nil
	}
	return v.conn.Opened()
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Logs implements sandbox.Sandbox.
func (v *vm) Logs() *tail.Log { return v.conn.Logs() }
