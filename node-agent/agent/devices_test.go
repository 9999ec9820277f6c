package agent

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

// handingOut is an agent over the VFs of an emulated host, and a client of the service that hands
// them out.
func handingOut(t *testing.T) (*Agent, *vftest.Tree, api.DevicesClient) {
	t.Helper()
	tree := vftest.Make(t)
	if err := tree.AddPF(vftest.IGB); err != nil {
		t.Fatal(err)
	}
	pool, err := vf.Open(t.Context(), tree.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	a, _, _ := newAgent(t)
	a.VFs, a.Starter.Admission = pool, startup.NewAdmission(1000, netvf.Path{Pool: pool})
	socket := filepath.Join(t.TempDir(), "node.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := api.NewServer(a.Measured(), a.Log)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	client, hangUp, err := api.DialDevices(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		hangUp()
		server.Stop()
		<-served
	})
	return a, tree, client
}

// A process is given a VF by the driver it wants and returns it; a watcher is shown all of it.
func TestDevices(t *testing.T) {
	a, tree, client := handingOut(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch, err := client.Watch(ctx, &api.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]*api.Device{}
	until := func(enough func() bool) {
		t.Helper()
		for !enough() {
			news, err := watch.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range news.Devices {
				shown[d.Bdf] = d
			}
		}
	}
	until(func() bool { return len(shown) == 7 })
	self := &api.Holder{Kind: "device", Name: "dpdk", Pid: int32(os.Getpid())}
	const bdf = "0000:01:10.4"
	lease, err := client.Lease(ctx, &api.LeaseRequest{Holder: self, Bdf: bdf, Driver: "netdev"})
	if err != nil || lease.Bdf != bdf || lease.Interface != "eth1v104" || lease.Group != "" {
		t.Fatalf("leased %v, %v", lease, err)
	}
	until(func() bool {
		return shown[bdf].Holder.GetPid() == self.Pid && shown[bdf].Driver == "netdev"
	})
	st, err := a.Status(ctx, &api.StatusRequest{})
	if err != nil || st.Vfs[4].Owner != "device/dpdk" || st.SoundVFs() != 6 {
		t.Errorf("the status is %v, %v", st, err)
	}
	_, err = client.Lease(ctx, &api.LeaseRequest{Holder: self, Bdf: bdf})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "1 leased") {
		t.Errorf("the lease of a leased VF: %v", err)
	}
	a.VFs.(*vf.Pool).Fault(bdf, "an error")
	until(func() bool { return shown[bdf].Lost == "an error" })
	for range 2 {
		back := &api.ReturnRequest{Bdf: bdf, Generation: lease.Generation}
		if _, err := client.Return(ctx, back); err != nil {
			t.Error(err)
		}
	}
	until(func() bool { return shown[bdf].State == "idle" && shown[bdf].Holder == nil })
	if driver := tree.Driver(bdf); driver != "vfio-pci" {
		t.Errorf("after its return the VF is bound to %s", driver)
	}
	any, err := client.Lease(ctx, &api.LeaseRequest{Holder: self})
	if err != nil || any.Group == "" || any.Interface != "" {
		t.Errorf("leased by vfio: %v, %v", any, err)
	}
}

// A VF is not given to a holder that is dead already, nor to a caller that does not hear of it.
func TestDevicesLeaseToTheLivingAlone(t *testing.T) {
	a, _, client := handingOut(t)
	gone := &api.Holder{Kind: "pod", Name: "p", Netns: filepath.Join(t.TempDir(), "netns")}
	_, err := client.Lease(t.Context(), &api.LeaseRequest{Holder: gone})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a pod whose namespace is not there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	self := &api.Holder{Kind: "device", Name: "dpdk", Pid: int32(os.Getpid())}
	_, err = a.Devices().Lease(ctx, &api.LeaseRequest{Holder: self})
	if status.Code(err) != codes.Canceled {
		t.Errorf("a caller that has gone: %v", err)
	}
	if left := a.VFs.Leases(); len(left) > 0 {
		t.Errorf("leased: %v", left)
	}
}

// A request that cannot be met is refused with a reason, and nobody takes the VF of a sandbox.
func TestDevicesRefuse(t *testing.T) {
	a, _, client := handingOut(t)
	if _, err := start(t, a, "x"); err != nil {
		t.Fatal(err)
	}
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	holder := func(kind string, pid int) *api.Holder {
		return &api.Holder{Kind: kind, Name: "x", Pid: int32(pid)}
	}
	lease := func(h *api.Holder, driver string) error {
		_, err := client.Lease(t.Context(), &api.LeaseRequest{Holder: h, Driver: driver})
		return err
	}
	back := func(bdf string) error {
		_, err := client.Return(t.Context(), &api.ReturnRequest{Bdf: bdf, Generation: 1})
		return err
	}
	pod := &api.Holder{Kind: "pod", Name: "p", Netns: "/proc/self/ns/net"}
	for says, c := range map[string]struct {
		err  error
		code codes.Code
	}{
		"when it is started": {lease(holder("sandbox", 0), ""), codes.InvalidArgument},
		"needs its process":  {lease(holder("device", 0), ""), codes.InvalidArgument},
		"does not run": {
			lease(holder("bench", dead.Process.Pid), ""),
			codes.InvalidArgument,
		},
		`not by "dpdk"`:  {lease(pod, "dpdk"), codes.FailedPrecondition},
		"is a sandbox's": {back(a.VFs.Leases()[0].BDF), codes.FailedPrecondition},
	} {
		if status.Code(c.err) != c.code || !strings.Contains(c.err.Error(), says) {
			t.Errorf("%v, want %s, %q", c.err, c.code, says)
		}
	}
	if _, err := a.Drain(t.Context(), &api.DrainRequest{Cancel: true}); err != nil {
		t.Fatal(err)
	}
	if err := lease(pod, ""); status.Code(err) != codes.Unavailable {
		t.Errorf("a node that drains: %v", err)
	}
	a.VFs = nil
	if err := back("x"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a node without VFs: %v", err)
	}
}
