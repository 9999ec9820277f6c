package qemu

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/life"
)

const (
	isRunning = `{"return":{"status":"running","running":true}}` + "\n"
	isPaused  = `{"return":{"status":"paused","running":false}}` + "\n"
	isBroken  = `{"return":{"status":"internal-error","running":false}}` + "\n"
	stopped   = `{"event":"STOP","timestamp":{"seconds":1,"microseconds":0}}` + "\n"
	done      = `{"return":{}}` + "\n"
	refused   = `{"error":{"class":"GenericError","desc":"not now"}}` + "\n"
)

// controlled is a vm whose QEMU gives these answers.
func controlled(t *testing.T, answers ...string) *vm {
	t.Helper()
	v := newVM(sandbox.Spec{ID: "f-1"}, nil, door.Secret{})
	v.qmp = talk(t, v.onEvent, append([]string{done}, answers...)...)
	if err := v.qmp.hello(); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAStopThatWasAskedForEndsNothing(t *testing.T) {
	v := controlled(t, isRunning, stopped+done, isPaused)
	for range 2 { // the second finds it paused
		if err := v.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if v.Cause() != nil {
		t.Fatalf("paused, and ended: %v", v.Cause())
	}
	v.onEvent(event{Name: "STOP"}) // and one that was not
	if v.Cause() == nil {
		t.Error("a guest that stopped by itself goes on")
	}
}

// QEMU says on its standard error which of a guest's parts failed, and then STOP.
func TestAVFsErrorIsAFault(t *testing.T) {
	const reported = "qemu-system-x86_64: vfio_err_notifier_handler(0000:01:10.0) Unrecoverable error " +
		"detected. Please collect any data possible and then kill the guest\n"
	handed := &sandbox.NIC{PCI: &sandbox.PCI{}}
	for name, c := range map[string]struct {
		log   string
		nic   *sandbox.NIC
		fault bool
	}{
		"the VF's error":        {"before\n" + reported, handed, true},
		"KVM's error":           {"KVM internal error. Suberror: 1\nemulation\n", handed, false},
		"nothing is said":       {"", handed, false},
		"no VF, whatever it is": {reported, nil, false},
	} {
		v := controlled(t, isRunning+stopped)
		v.spec.Dir, v.spec.NIC = t.TempDir(), c.nic
		if err := os.WriteFile(vmmLog(v.spec), []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := v.state(); err != nil { // the event comes behind its answer
			t.Fatal(err)
		}
		<-v.Context().Done()
		var fault *sandbox.NICFault
		if errors.As(v.Cause(), &fault) != c.fault {
			t.Errorf("%s: %v", name, v.Cause())
		}
		if c.fault && !strings.Contains(fault.Why, "0000:01:10.0") {
			t.Errorf("%s: %v", name, fault)
		}
	}
}

// A report's facts about a VMM that has gone are in its run directory.
func TestAVMMLeavesItsArgumentsAndLimits(t *testing.T) {
	spec := sandbox.Spec{Dir: t.TempDir()}
	testify(spec, []string{"qemu", "-S"}, "memory.events: oom_kill 1\n")
	testify(spec, nil, "") // of an adopted one whose cgroup has gone
	for name, want := range map[string]string{"qemu.txt": "qemu\n-S",
		"limits.txt": "memory.events: oom_kill 1\n"} {
		if text, err := os.ReadFile(filepath.Join(spec.Dir, name)); err != nil ||
			string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

func TestPausesThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		answers []string
		want    string
	}{
		"QEMU refuses":           {[]string{isRunning, refused}, "not now"},
		"the guest cannot go on": {[]string{isBroken}, "internal-error"},
	} {
		v := controlled(t, c.answers...)
		if err := v.Pause(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		v.onEvent(event{Name: "STOP", At: time.Now()})
		if v.Cause() == nil {
			t.Errorf("%s: the next stop counts as asked for", name)
		}
		if err := v.Resume(t.Context()); err == nil {
			t.Errorf("%s: an ended sandbox is resumed", name)
		}
	}
}

// A VMM may send the event STOP while take refuses its connection. The connection's reader is then
// busy with that event, and take must not wait for it.
func TestAnEndedVMTakesNoConnectionAndWaitsForNoLock(t *testing.T) {
	ours, theirs := net.Pipe()
	v := &vm{Life: life.New(), gone: true}
	hearing := make(chan struct{})
	var q *qmp
	q = newQMP(ours, func(e event) {
		close(hearing)
		<-q.quit.Done()
		v.onEvent(e)
	})
	defer theirs.Close()
	if _, err := theirs.Write([]byte(stopped)); err != nil {
		t.Fatal(err)
	}
	<-hearing
	taken := make(chan bool, 1)
	go func() { taken <- v.take(q) }()
	select {
	case kept := <-taken:
		if kept {
			t.Error("it kept the connection")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("take waits for the reader, which waits for take's lock")
	}
}
