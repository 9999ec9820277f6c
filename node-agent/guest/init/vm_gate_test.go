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
	starts := 35
	if testing.Short() {
		starts = 5
	}
	testbed.Inside(t, needs, func(t *testing.T) {
		port, err := os.ReadFile("/share/port")
		if err != nil {
			t.Fatal(err)
		}
		v := &gatedVM{lease: leaseVF(t), server: "10.0.2.2:" + string(port)}
		const late, later = 500 * time.Millisecond, 5 * time.Second
		t.Run("without a gate", func(t *testing.T) {
			if alone, _ := v.start(t, late, false, false); alone < late*9/10 {
				t.Errorf("only the VF was waited for during %v of %v", alone, late)
			}
		})
		t.Run("with a gate", func(t *testing.T) {
			if alone, _ := v.start(t, late, true, false); alone > late/20 {
				t.Errorf("only the VF was waited for during %v of %v", alone, late)
			}
		})
		t.Run("with a gate, later", func(t *testing.T) {
			if alone, _ := v.start(t, later, true, false); alone > later/5 {
				t.Errorf("only the VF was waited for during %v of %v", alone, later)
			}
		})
		connected, holding, held := 0, 0, 0
		for i := range starts {
			t.Run(fmt.Sprint("connects at once ", i), func(t *testing.T) {
				_, gate := v.start(t, max(later, 2*v.pace), true, true)
				if held += gate.Held; gate.Held > 0 {
					holding++
				}
				if gate.Dropped > 0 {
					t.Errorf("%d packets dropped", gate.Dropped)
				}
				if !t.Failed() {
					connected++
				}
			})
		}
		t.Logf("%d of %d programs connected the first time; %d packets of %d were held", connected,
			starts, held, holding)
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

type gatedVM struct {
	lease  vf.Lease
	server string
	pace   time.Duration // from the VF's begin to ready, of the last start
}

// start starts a microVM whose VF comes up with that delay, with a program that connects at once or
// never. It returns how long only the VF was waited for until the program's first answer.
func (v *gatedVM) start(t *testing.T, delay time.Duration, gated, dials bool) (time.Duration,
	timeline.Gate) {
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
	if dials {
		config.Env = map[string]string{"DIAL": v.server}
	}
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
	ready := time.Now()
	showStages(t, m, conn)
	answered := ready
	if dials {
		want := "dialled: heard " + address.Addr().String()
		lines := logged(patient, conn, 2)
		if len(lines) != 2 || lines[1].Text != want {
			t.Fatalf("the program says %+v, want %q", lines, want)
		}
		answered = lines[1].Time
	}
	var gate timeline.Gate
	if gated {
		select {
		case <-conn.Opened():
		case <-conn.Done():
			t.Fatal(conn.Err())
		}
		gate = conn.Gate()
	}
	held := timeline.Span{Begin: gate.First, End: gate.Opened}
	if gate.First.IsZero() {
		held = timeline.Span{}
	}
	for _, s := range conn.Spans() {
		if s.Stage == timeline.VFDriver {
			v.pace = ready.Sub(s.Begin).Round(time.Millisecond)
		}
	}
	alone := timeline.Alone(timeline.VFDriver, conn.Spans(), held, m.started, answered)
	after := func(since time.Time) time.Duration {
		return answered.Sub(since).Round(time.Millisecond)
	}
	t.Logf("gate %v, %v late, connects %v: answered after %v; only the VF was waited for "+
		"in %v; %+v", gated, delay, dials, after(m.started), alone.Round(time.Millisecond), gate)
	if gate.Held > 0 {
		t.Logf("answered %v after the first packet was held, %v after all had been sent",
			after(gate.First), after(gate.Opened))
	}
	return alone, gate
}
