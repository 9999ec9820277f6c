//go:build failpoint

package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/failpoint"
	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/testbed"
)

// TestTheGateOfMicroVMs starts microVMs whose VF comes up late, and reads from their record how
// long only the VF was waited for. A program that connects at once succeeds the first time.
func TestTheGateOfMicroVMs(t *testing.T) {
	needs := testbed.Needs{NICs: 1}
	if os.Getenv("FASTIOV_TEST_TESTBED") != "" {
		needs.Files = artefacts(t)
		needs.Files["port"] = serveOutside(t)
	}
	const starts = 35
	testbed.Inside(t, needs, func(t *testing.T) {
		port, err := os.ReadFile("/share/port")
		if err != nil {
			t.Fatal(err)
		}
		v := &gatedVM{lease: leaseVF(t), server: "10.0.2.2:" + string(port)}
		const late, later = 500 * time.Millisecond, 5 * time.Second
		t.Run("without a gate", func(t *testing.T) {
			if v.start(t, late, false, nil); v.alone < late*9/10 {
				t.Errorf("only the VF was waited for during %v of %v", v.alone, late)
			}
		})
		t.Run("with a gate", func(t *testing.T) {
			if v.start(t, late, true, nil); v.alone > late/20 {
				t.Errorf("only the VF was waited for during %v of %v", v.alone, late)
			}
		})
		t.Run("with a gate, later", func(t *testing.T) {
			v.start(t, max(later, 2*v.pace), true, nil)
			if v.overlaps(t); v.alone > later/5 {
				t.Errorf("only the VF was waited for during %v of %v", v.alone, later)
			}
		})
		connected, held := 0, 0
		for i := range starts {
			t.Run(fmt.Sprint("connects at once ", i), func(t *testing.T) {
				v.start(t, max(later, 2*v.pace), true, map[string]string{"DIAL": v.server})
				if v.overlaps(t); v.gate.Held == 0 || v.gate.Dropped > 0 {
					t.Errorf("%d packets were held, %d dropped", v.gate.Held, v.gate.Dropped)
				}
				if held += v.gate.Held; !t.Failed() {
					connected++
				}
			})
		}
		t.Logf("%d of %d programs connected the first time; %d packets were held", connected,
			starts, held)
		// The control: what a gate does not help is seen.
		t.Run("of a program that waits for its VF", func(t *testing.T) {
			delay := max(later, 2*v.pace)
			v.start(t, delay, true, map[string]string{"WAIT": gateName})
			if v.alone < delay/2 {
				t.Errorf("only the VF was waited for, and that is seen in %v of %v", v.alone, delay)
			}
		})
	})
}

// serveOutside answers lines on this machine, which guests reach as the testbed's 10.0.2.2, and
// returns a file with the port.
func serveOutside(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				line, _ := bufio.NewReader(conn).ReadString('\n')
				fmt.Fprint(conn, "heard ", line)
			}()
		}
	}()
	path := filepath.Join(t.TempDir(), "port")
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	if err := os.WriteFile(path, []byte(port), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A gatedVM starts microVMs with one VF. All but its first two fields are of the last start.
type gatedVM struct {
	lease  vf.Lease
	server string

	pace  time.Duration // from the VF's begin to ready
	alone time.Duration // in which only the VF was waited for, until the program's first answer
	ready time.Time
	gate  timeline.Gate
}

// overlaps wants that the program was ready before the VF was up.
func (v *gatedVM) overlaps(t *testing.T) {
	t.Helper()
	if !v.ready.Before(v.gate.Opened) {
		t.Errorf("ready %v after the VF was up: the gate had nothing to show",
			v.ready.Sub(v.gate.Opened))
	}
}

// start starts a microVM whose VF comes up with that delay, with a program of that environment:
// DIAL has it connect at once.
func (v *gatedVM) start(t *testing.T, delay time.Duration, gated bool, env map[string]string) {
	t.Helper()
	calls, err := guest.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer calls.Close()
	conn, err := calls.Expect(testCID)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"kernel": "/share/kernel", "initrd": "/share/initrd",
		"root.erofs": "/share/root.erofs"}
	m := start(t, files, fmt.Sprintf("%s=%s:%s", failpoint.DelayEnv, failpoint.GuestVFUp, delay),
		"-accel", "kvm", "-cpu", "host", "-device", "vhost-vsock-pci,guest-cid=3", "-device",
		"vfio-pci,host="+v.lease.BDF)
	address := netip.MustParsePrefix("10.0.2.77/24")
	config := wire.Config{
		Secret: testSecret, Hostname: "sandbox-1", Gate: gated,
		Program: wire.Program{Command: []string{"runtime"}, UID: 1000, GID: 1000},
		NIC: &wire.NIC{MAC: v.lease.MAC, Address: address,
			Gateway: netip.MustParseAddr("10.0.2.2"), DNS: netip.MustParseAddr("10.0.2.3")},
	}
	config.Env = env
	patient, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if _, err := conn.Hello(patient); err != nil {
		t.Fatal(err)
	}
	if err := conn.Configure(config); err != nil {
		t.Fatal(err)
	}
	if err := conn.Ready(patient); err != nil {
		t.Fatal(err)
	}
	v.ready = time.Now()
	showStages(t, m, conn)
	answered, dials := v.ready, env["DIAL"] != ""
	if dials {
		want := "dialled: heard " + address.Addr().String()
		lines := logged(patient, conn, 2)
		if len(lines) != 2 || lines[1].Text != want {
			t.Fatalf("the program says %+v, want %q", lines, want)
		}
		answered = lines[1].Time
	}
	v.gate = timeline.Gate{}
	if gated {
		select {
		case <-conn.Opened():
		case <-conn.Done():
			t.Fatal(conn.Err())
		}
		v.gate = conn.Gate()
	}
	held := timeline.Span{Begin: v.gate.First, End: v.gate.Opened}
	if v.gate.First.IsZero() {
		held = timeline.Span{}
	}
	for _, s := range conn.Spans() {
		if s.Stage == timeline.VFDriver {
			v.pace = v.ready.Sub(s.Begin).Round(time.Millisecond)
		}
	}
	v.alone = v.gate.Idle +
		timeline.Alone(timeline.VFDriver, conn.Spans(), held, m.started, answered)
	after := func(since time.Time) time.Duration {
		return answered.Sub(since).Round(time.Millisecond)
	}
	t.Logf("gate %v, %v late, %v: answered after %v; only the VF was waited for in %v; %+v", gated,
		delay, env, after(m.started), v.alone.Round(time.Millisecond), v.gate)
	if v.gate.Held > 0 {
		t.Logf("answered %v after the first packet was held, %v after all had been sent",
			after(v.gate.First), after(v.gate.Opened))
	}
}
