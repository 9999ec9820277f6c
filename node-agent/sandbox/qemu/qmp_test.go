package qemu

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/testbed"
)

func TestMain(m *testing.M) {
	if os.Getenv(asRuntime) != "" {
		whoAmI()
		return
	}
	testbed.Main(m)
}

// talk connects a client to a QEMU that greets first, and then answers each command with the next
// of answers.
func talk(t *testing.T, onEvent func(event), answers ...string) *qmp {
	t.Helper()
	before := goleak.IgnoreCurrent() // a test host may be up
	t.Cleanup(func() { leaks.None(t, before) })
	ours, theirs := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer theirs.Close()
		fmt.Fprint(theirs, `{"QMP":{"version":{"qemu":{"major":10}},"capabilities":["oob"]}}`+
			"\r\n")
		for commands := bufio.NewScanner(theirs); len(answers) > 0 &&
			commands.Scan(); answers = answers[1:] {
			io.WriteString(theirs, answers[0])
		}
	}()
	q := newQMP(ours, onEvent)
	t.Cleanup(func() { q.close(); <-ended })
	return q
}

func TestCommandsAndEventsInterleave(t *testing.T) {
	events := make(chan event, 2)
	q := talk(t, func(e event) { events <- e },
		`{"return":{}}`+"\r\n",
		`{"timestamp":{"seconds":1700000000,"microseconds":250000},"event":"RESUME"}`+"\r\n"+
			`{"return":{"name":"f-1"}}`+"\r\n"+
			`{"timestamp":{"seconds":1,"microseconds":0},"event":"SHUTDOWN","data":{"guest":true,"reason":"guest-reset"}}`+
			"\r\n")
	if err := q.hello(); err != nil {
		t.Fatal(err)
	}
	var who struct{ Name string }
	if err := q.ask("query-name", &who); err != nil || who.Name != "f-1" {
		t.Fatalf("%+v, %v", who, err)
	}
	if e := <-events; e.Name != "RESUME" || !e.At.Equal(time.Unix(1700000000, 250e6)) {
		t.Errorf("%+v", e)
	}
	if e := <-events; e.Name != "SHUTDOWN" || e.Data.Reason != "guest-reset" {
		t.Errorf("%+v", e)
	}
}

func TestWhatGoesWrongIsSaid(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"refused":     {`{"error":{"class":"GenericError","desc":"no such thing"}}` + "\n", "QMP cont: no such thing"},
		"hangs up":    {"", "closed the connection"},
		"no JSON":     {"qemu: what?\n", "closed the connection"},
		"no message":  {"{}\n", "closed the connection"},
		"endless":     {`{"return":"` + strings.Repeat("x", maxQMPLine), "closed the connection"},
		"greets anew": {`{"QMP":{}}` + "\n", "out of turn"},
	} {
		t.Run(name, func(t *testing.T) {
			q := talk(t, func(event) {}, `{"return":{}}`+"\n", c.answer)
			if err := q.hello(); err != nil {
				t.Fatal(err)
			}
			if err := q.ask("cont", nil); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func FuzzQMPLines(f *testing.F) {
	f.Add([]byte(`{"QMP":{}}` + "\r\n" + `{"return":{}}` + "\n" +
		`{"event":"STOP","timestamp":{"seconds":-1}}`))
	f.Add([]byte(`{"event":"SHUTDOWN","data":{"reason":7}}` + "\n" + `{"error":null}`))
	f.Fuzz(func(t *testing.T, stream []byte) {
		for lines := newLines(bytes.NewReader(stream)); lines.Scan(); {
			m, err := parse(lines.Bytes())
			if err == nil && m.Event != "" {
				if e := eventOf(m); e.Name != m.Event {
					t.Errorf("%q became %q", m.Event, e.Name)
				}
			}
		}
	})
}

func TestTheMonitorIsRoots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "qmp.sock")
	f, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if s, err := os.Stat(path); err != nil || s.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", s.Mode(), err)
	}
}
