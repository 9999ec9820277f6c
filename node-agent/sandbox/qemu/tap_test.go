package qemu

import (
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/netpath/bridge"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/testbed"
)

// dials is a function that says which ports of its gateway it reaches: the resolver's, and sshd's.
const dials = `import socket

def main(args):
    reached = []
    for port in (53, 22):
        try:
            socket.create_connection((args["gateway"], port), 5).close()
            reached.append(port)
        except OSError:
            pass
    return {"reached": reached}
`

// TestAMicroVMOverATap starts one without a VF: it has a port of the bridge, and no stage of VFIO.
func TestAMicroVMOverATap(t *testing.T) {
	testbed.Inside(t, testbed.Needs{Images: []string{runtimeName}}, func(t *testing.T) {
		images, err := image.OpenSet(testbed.ImagesDir)
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		dir := filepath.Join(t.TempDir(), "bridge")
		b, err := bridge.Open(bridge.Config{Name: "tapped", Dir: dir, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		tl := &timeline.Timeline{}
		sb, spec := overTap(t, images, b, log, tl)
		defer sb.Close()
		var stages []timeline.Stage
		for _, s := range tl.Spans() {
			stages = append(stages, s.Stage)
		}
		if !slices.Contains(stages, timeline.CNI) || !slices.Contains(stages, timeline.VFDriver) ||
			slices.Contains(stages, timeline.VFIODev) || slices.Contains(stages, timeline.DMARAM) {
			t.Errorf("its stages are %v", stages)
		}
		line := strings.Join(sb.(*vm).args, " ")
		if !strings.Contains(line, "vhost=on") {
			t.Errorf("QEMU carries the packets itself: %s", line)
		}
		r := openwhisk.New(sb, wire.RuntimePort, nil)
		status, answer, err := r.Init(t.Context(), fmt.Appendf(nil,
			`{"value":{"name":"dials","main":"main","binary":false,"code":%q}}`, dials))
		if err != nil || status != http.StatusOK {
			t.Fatalf("/init: %d %s, %v", status, answer, err)
		}
		status, answer, err = r.Run(t.Context(), fmt.Appendf(nil, `{"value":{"gateway":%q}}`,
			spec.NIC.Gateway), time.Time{})
		if err != nil || status != http.StatusOK || !strings.Contains(string(answer), "[53]") {
			t.Errorf("of its gateway's ports it reaches %d %s, %v; want the resolver's alone",
				status, answer, err)
		}
		sb.Close()
		// The kernel may drop the last reference to the tap a moment after QEMU has ended.
		for late := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if _, err := netlink.LinkByName("tappedp0"); err != nil {
				break
			} else if time.Now().After(late) {
				t.Fatal("its port has outlived it")
			}
		}
		for _, left := range b.Left() {
			b.Return(left)
		}
		b.Close()
		if left, err := filepath.Glob("/sys/class/net/tapped*"); len(left) > 0 || err != nil {
			t.Errorf("left over: %v, %v", left, err)
		}
	})
}

func overTap(t *testing.T, images *image.Set, b *bridge.Bridge, log *slog.Logger,
	tl *timeline.Timeline) (sandbox.Sandbox, sandbox.Spec) {
	t.Helper()
	further, err := images.Guest.Further(image.TapName)
	if err != nil {
		t.Fatal(err)
	}
	vmm, err := hypervisor.Find(t.Context(), images.QEMU)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(Config{QEMU: vmm, Kernel: images.Guest.Kernel, Initrd: images.Guest.Initrd,
		Further: further, Arm: arm.Tap, Tap: b.Tap, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	runtime, _, err := images.Use(t.Context(), runtimeName, "")
	if err != nil {
		t.Fatal(err)
	}
	lease, err := b.Lease("tapped")
	if err != nil {
		t.Fatal(err)
	}
	nic := lease.NIC
	nic.Gateway, nic.DNS = b.Network.Gateway, b.Network.DNS
	if nic.Address, err = b.Network.Address(lease.Number); err != nil {
		t.Fatal(err)
	}
	spec := sandbox.Spec{ID: "tapped", Dir: t.TempDir(), Root: runtime.Root,
		Program: runtime.Program, MemoryMiB: 192, NIC: &nic}
	sb, err := d.Start(t.Context(), spec, tl, func(sandbox.Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return sb, spec
}
