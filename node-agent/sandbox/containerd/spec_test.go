package containerd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/apparmor"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A container gets nothing that containerd would not have given it.
func TestNoMoreThanContainerdGives(t *testing.T) {
	ctx := namespaces.WithNamespace(t.Context(), "test")
	theirs, err := oci.GenerateSpec(ctx, nil, &containers.Container{ID: "a"},
		oci.WithDefaultUnixDevices, seccomp.WithDefaultProfile())
	if err != nil {
		t.Fatal(err)
	}
	for name, uid := range map[string]uint32{"root": 0, "user": 1000} {
		t.Run(name, func(t *testing.T) {
			network, err := os.Open("/proc/self/ns/net")
			if err != nil {
				t.Fatal(err)
			}
			defer network.Close()
			b := newBox(&Driver{Config: Config{Namespace: "test"}}, sandbox.Spec{ID: "a",
				Dir: t.TempDir(), Program: wire.Program{Command: []string{"/p"}, UID: uid},
				MemoryMiB: 128})
			b.net = network
			ours, err := b.oci(ctx)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, ours, theirs)
		})
	}
}

func compare(t *testing.T, ours, theirs *oci.Spec) {
	all := func(what string, part, whole []string) {
		t.Helper()
		for _, one := range part {
			if !slices.Contains(whole, one) {
				t.Errorf("%s: %s", what, one)
			}
		}
	}
	all("a path that is not masked", theirs.Linux.MaskedPaths, ours.Linux.MaskedPaths)
	all("a path that can be written", theirs.Linux.ReadonlyPaths, ours.Linux.ReadonlyPaths)
	our, their := ours.Process.Capabilities, theirs.Process.Capabilities
	all("a capability", our.Bounding, their.Bounding)
	all("an effective capability", our.Effective, their.Effective)
	all("a permitted capability", our.Permitted, their.Permitted)
	if len(our.Inheritable)+len(our.Ambient) > 0 {
		t.Errorf("capabilities that outlive an exec: %+v", our)
	}
	if !ours.Process.NoNewPrivileges {
		t.Error("it may gain privileges")
	}
	namespaces := func(s *oci.Spec) (types []string) {
		for _, n := range s.Linux.Namespaces {
			types = append(types, string(n.Type))
		}
		return types
	}
	all("a namespace of the host", append(namespaces(theirs), string(specs.CgroupNamespace)),
		namespaces(ours))
	if !reflect.DeepEqual(ours.Linux.Resources.Devices, theirs.Linux.Resources.Devices) {
		t.Errorf("it may use the devices %+v", ours.Linux.Resources.Devices)
	}
	if !reflect.DeepEqual(ours.Process.Rlimits, theirs.Process.Rlimits) {
		t.Errorf("its limits are %+v", ours.Process.Rlimits)
	}
	for _, m := range ours.Mounts {
		ownFile := m.Type == "bind" && slices.Contains(m.Options, "ro") &&
			filepath.Dir(m.Destination) == "/etc"
		ownCgroup := m.Type == "cgroup" && slices.Contains(m.Options, "ro")
		same := func(their specs.Mount) bool { return reflect.DeepEqual(m, their) }
		if !ownFile && !ownCgroup && !slices.ContainsFunc(theirs.Mounts, same) {
			t.Errorf("it has the mount %+v", m)
		}
	}
	calls(t, ours.Linux.Seccomp, theirs.Linux.Seccomp)
}

// calls checks that each rule about system calls is one of containerd's.
func calls(t *testing.T, our, their *specs.LinuxSeccomp) {
	if our.DefaultAction != their.DefaultAction || len(our.Syscalls) == 0 {
		t.Errorf("what no rule names is %s", our.DefaultAction)
	}
	known := map[string][]specs.LinuxSyscall{}
	for _, rule := range their.Syscalls {
		for _, name := range rule.Names {
			known[name] = append(known[name], rule)
		}
	}
	for _, rule := range our.Syscalls {
		for _, name := range rule.Names {
			if rule.Action == specs.ActAllow && !slices.ContainsFunc(known[name],
				func(their specs.LinuxSyscall) bool {
					return their.Action == rule.Action && reflect.DeepEqual(their.Args, rule.Args)
				}) {
				t.Errorf("it may call %s with %+v", name, rule.Args)
			}
		}
	}
}

const oneVersion = "FASTIOV_TEST_CONTAINERD_ONE_VERSION"

// oneVersionOfCgroups runs a test in a process that sees one version of cgroups: crun refuses both.
func oneVersionOfCgroups(t *testing.T) (here bool) {
	const second = "/sys/fs/cgroup/unified"
	if os.Getenv(oneVersion) != "" {
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err == nil {
			err = unix.Mount("nothing", second, "tmpfs", 0, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	}
	if _, err := os.Stat(second + "/cgroup.procs"); err != nil {
		return true
	}
	again := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), oneVersion+"=1")
	again.Stdout, again.Stderr = t.Output(), t.Output()
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	if err := again.Run(); err != nil {
		t.Error(err)
	}
	return false
}

// Other runtimes with runc's command line serve as well as runc.
func TestRuntimesLikeRunc(t *testing.T) {
	needs(t)
	if !oneVersionOfCgroups(t) {
		return
	}
	for _, handler := range []string{"crun", "youki"} {
		t.Run(handler, func(t *testing.T) {
			if _, err := exec.LookPath(handler); err != nil && handler == "crun" {
				needed(t, handler)
			} else if err != nil {
				t.Skipf("there is no %s, and Debian has none", handler)
			}
			h := newHost(t)
			h.config.Handlers = []string{handler}
			d := h.open()
			defer d.Close()
			s, _ := h.start(d, "by-"+handler, h.program())
			var is self
			ask(t, s, wire.RuntimePort, &is)
			if is.Status["Seccomp"] != "2" || is.Status["NoNewPrivs"] != "1" || is.Processes != 1 {
				t.Errorf("it is %+v", is)
			}
			for what, said := range map[string]string{"a raw socket": is.Raw, "a mount": is.Mount,
				"a disk": is.Device, "a sysctl": is.Sys} {
				if said == "allowed" {
					t.Errorf("it got %s", what)
				}
			}
			if err := s.Pause(t.Context()); err != nil {
				t.Error(err)
			}
			if err := s.Resume(t.Context()); err != nil {
				t.Error(err)
			}
			ask(t, s, wire.RuntimePort, &is)
			s.Close()
			if left := d.Leftovers(nil); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

// Where the host has AppArmor, containers have containerd's default profile. The driver takes it
// back behind the last of them.
func TestContainersHaveAProfile(t *testing.T) {
	needs(t)
	if !apparmor.HostSupports() {
		t.Skip("this host has no AppArmor, or no apparmor_parser")
	}
	h := newHost(t)
	d := h.open()
	s, rec := h.start(d, "profiled", h.program())
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", rec.PID))
	if got := strings.TrimSpace(string(text)); err != nil || got != d.profile+" (enforce)" {
		t.Errorf("its profile is %q, %v", got, err)
	}
	var is self
	ask(t, s, wire.RuntimePort, &is)
	s.Close()
	d.Close()
	loaded, err := os.ReadFile("/sys/kernel/security/apparmor/profiles")
	if err != nil || strings.Contains(string(loaded), profileName(h.config.Namespace)) {
		t.Errorf("the host has its profile yet: %s, %v", loaded, err)
	}
}

// One node has several handlers: a sandbox is run by the one that it names, or by the first.
func TestASandboxNamesItsHandler(t *testing.T) {
	needs(t)
	if !oneVersionOfCgroups(t) {
		return
	}
	if _, err := exec.LookPath("crun"); err != nil {
		needed(t, "crun")
	}
	h := newHost(t)
	h.config.Handlers = []string{"runc", "/usr/bin/crun"}
	d := h.open()
	defer d.Close()
	for handler, byCrun := range map[string]bool{"": false, "runc": false, "crun": true} {
		h.handler = handler
		s, rec := h.start(d, "by-"+handler+"0", h.program())
		container, err := d.client.LoadContainer(d.named(t.Context()), rec.Spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		info, err := container.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		chosen := string(info.Runtime.Options.GetValue())
		if strings.Contains(chosen, "/usr/bin/crun") != byCrun {
			t.Errorf("%q is run by %q", handler, chosen)
		}
		s.Close()
	}
	err := d.Offers("runsc")
	if err == nil || !strings.Contains(err.Error(), "it has runc, /usr/bin/crun") {
		t.Errorf("a handler that the node does not have: %v", err)
	}
	if _, err := d.Start(t.Context(), sandbox.Spec{ID: "none", Handler: "runsc"},
		&timeline.Timeline{}, nil); err == nil {
		t.Error("it is started by another")
	}
	if left := d.Leftovers(nil); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}
