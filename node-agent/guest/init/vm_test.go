package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/vsock"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/testbed"
)

// This file is the last by its name, because the host it boots stays a child of the test, and the
// tests of process 1 reap every child.

// TestMicroVM lives a guest's whole life as in production: under KVM, over vsock, with a VF of a
// real driver.
func TestMicroVM(t *testing.T) {
	needs := testbed.Needs{NICs: 1}
	if os.Getenv("FASTIOV_TEST_TESTBED") != "" {
		needs.Files = artefacts(t)
	}
	testbed.Inside(t, needs, func(t *testing.T) {
		lease := leaseVF(t)
		calls, err := guest.Listen()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := calls.Expect(testCID)
		if err != nil {
			t.Fatal(err)
		}
		files := map[string]string{"kernel": "/share/kernel", "initrd": "/share/initrd",
			"root.erofs": "/share/root.erofs"}
		m := start(t, files, "", "-accel", "kvm", "-cpu", "host", "-device",
			"vhost-vsock-pci,guest-cid=3", "-device", "vfio-pci,host="+lease.BDF)
		config := wire.Config{
			Secret: testSecret, Hostname: "sandbox-1",
			Program: wire.Program{Command: []string{"runtime"}, UID: 1000, GID: 1000},
			NIC: &wire.NIC{
				MAC: lease.MAC, Address: netip.MustParsePrefix("10.0.2.77/24"),
				Gateway: netip.MustParseAddr("10.0.2.2"), DNS: netip.MustParseAddr("10.0.2.3"),
			},
		}
		if err := makeReady(t, conn, config); err != nil {
			t.Fatal(err)
		}
		showStages(t, m, conn)
		if share := coverage(conn.Spans(), lastEnd(conn)); share < 0.99 {
			t.Errorf("the guest's stages cover %.3f of its start", share)
		}
		said := len(logged(deadline(t), conn, 1)) // when it starts
		activate(t, conn, said)

		calls.Close() // the agent restarts
		if calls, err = guest.Listen(); err != nil {
			t.Fatal(err)
		}
		defer calls.Close()
		if conn, err = calls.Expect(testCID); err != nil {
			t.Fatal(err)
		}
		if hello, err := conn.Hello(deadline(t)); err != nil || !hello.Ready {
			t.Fatal(hello, err)
		}
		activate(t, conn, 0)
	})
}

// leaseVF takes a VF from a pool of its own.
func leaseVF(t *testing.T) vf.Lease {
	t.Helper()
	config := vf.Config{PFs: []string{"igb"}, Run: t.TempDir()}
	pool, err := vf.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool.Close()
		if err := vf.Undo(config); err != nil {
			t.Error(err)
		}
	})
	owner, err := vf.Process(vf.Bench, "sandbox-1", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for range pool.Watch(deadline(t)) { // the PF's link comes up
		var lease vf.Lease
		if lease, err = pool.Lease(owner, vf.Want{}); err == nil {
			return lease
		}
	}
	t.Fatal(err)
	return vf.Lease{}
}

func lastEnd(conn *guest.Conn) (last time.Time) {
	for _, s := range conn.Spans() {
		if s.End.After(last) {
			last = s.End
		}
	}
	return last
}

// activate sends the runtime a request over vsock and looks at what it logs after the lines that it
// said before.
func activate(t *testing.T, conn *guest.Conn, said int) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn, err := vsock.Dial(testCID, wire.RuntimePort, nil)
			if err == nil {
				err = door.Enter(conn, testSecret, door.Runtime)
			}
			return conn, err
		}}}
	reply, err := client.Get("http://guest/run")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	checkAround(t, string(body), map[string]string{
		"host": "sandbox-1", "hosts": "127.0.0.1 localhost\n::1 localhost\n10.0.2.77 sandbox-1\n",
		"resolv": "nameserver 10.0.2.3\n", "uid": "1000",
	})
	if !strings.Contains(string(body), "10.0.2.77/24") {
		t.Errorf("the VF has no address: %s", body)
	}
	lines := logged(deadline(t), conn, said+2)
	// Its two streams are read one beside the other.
	if len(lines) != said+2 || !slices.ContainsFunc(lines[said:], func(l wire.LogLine) bool {
		return l.Text == "activated by /run"+openwhisk.Sentinel
	}) {
		t.Errorf("logs: %+v", lines)
	}
}

func coverage(spans []timeline.Span, end time.Time) float64 {
	begin := spans[0].Begin
	return timeline.Coverage(timeline.Attribute(spans, begin, end), begin, end)
}
