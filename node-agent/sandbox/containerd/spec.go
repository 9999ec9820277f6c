package containerd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/fastiov/fastiov/node-agent/guest/mounts"
)

// A runtime holds how containerd runs a container.
type runtime struct {
	name     string // as containerd has it
	options  any
	ownStack bool // its network is not the kernel's
}

const runcShim = "io.containerd.runc.v2"

// runtimesOf returns the runtimes of handlers by their names, and the first also by "".
func runtimesOf(handlers []string, shims string) (map[string]runtime, error) {
	all := map[string]runtime{}
	for i, handler := range handlers {
		r, err := runtimeOf(handler, shims)
		if err != nil {
			return nil, err
		}
		all[handler], all[filepath.Base(handler)] = r, r
		if i == 0 {
			all[""] = r
		}
	}
	return all, nil
}

// runtimeOf returns the runtime of a handler. The shim of runc runs all that have runc's command
// line: those named here, and any by its path. It moves to the cgroup shims.
func runtimeOf(handler, shims string) (runtime, error) {
	likeRunc := func(program string) (runtime, error) {
		return runtime{name: runcShim,
			options: &options.Options{BinaryName: program, ShimCgroup: shims}}, nil
	}
	switch {
	case handler == "runc":
		return likeRunc("")
	case handler == "crun" || handler == "youki" || filepath.IsAbs(handler):
		return likeRunc(handler)
	case handler == "runsc":
		return runtime{name: "io.containerd.runsc.v1", ownStack: true}, nil
	case handler == "kata":
		return runtime{name: "io.containerd.kata.v2", ownStack: true}, nil
	case strings.Count(handler, ".") > 1:
		return runtime{name: handler, ownStack: true}, nil
	}
	return runtime{}, fmt.Errorf("no handler is named %.40q: name runc, crun, youki, runsc or"+
		" kata, the path of a program with runc's command line, or a containerd runtime", handler)
}

// Of containerd's capabilities, a program keeps those by which it becomes another user, and has
// files of several. It gets no raw sockets, no devices, no chroot and no audit.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
	"CAP_NET_BIND_SERVICE", "CAP_SETGID", "CAP_SETUID",
}

const (
	ociVersion = "1.0.2" // the oldest runtimes that are met know no later one
	most       = 1024    // processes
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// oci returns the container as a runtime reads it: containerd's defaults, tightened.
func (b *box) oci(ctx context.Context) (*oci.Spec, error) {
	p := b.spec.Program
	files, err := b.files()
	if err != nil {
		return nil, err
	}
	dir := p.Dir
	if dir == "" {
		dir = "/"
	}
	network := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), b.net.Fd())
	s, err := oci.GenerateSpec(ctx, nil, &containers.Container{ID: b.spec.ID},
		oci.WithProcessArgs(p.Command...), oci.WithProcessCwd(dir), oci.WithEnv(b.environment()),
		oci.WithUIDGID(p.UID, p.GID), oci.WithHostname(sandboxOf(b.spec.ID)),
		oci.WithMounts(append(files, cgroupsSeen)),
		oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: network}),
		oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.CgroupNamespace}),
		oci.WithCgroup(b.cgroup()),
		oci.WithCapabilities(capabilities), oci.WithNoNewPrivileges,
		oci.WithDefaultUnixDevices, seccomp.WithDefaultProfile(),
	)
	if err != nil {
		return nil, err
	}
	if p.UID != 0 { // a user that is not root has none of them, and no way to get one
		s.Process.Capabilities = &specs.LinuxCapabilities{}
	}
	if s.Process.ApparmorProfile = b.driver.profile; s.Process.ApparmorProfile != "" {
		if err := load(b.driver.profile); err != nil {
			return nil, err
		}
	}
	s.Version = ociVersion
	s.Linux.Resources.Memory = b.driver.cgroup(b.spec).limits.Memory
	s.Linux.Resources.Pids = b.driver.cgroup(b.spec).limits.Pids
	s.Linux.Resources.CPU = b.driver.cgroup(b.spec).limits.CPU
	return s, nil
}

// cgroupsSeen shows a program its own cgroup, and so its limits, which it cannot change.
var cgroupsSeen = specs.Mount{Type: "cgroup", Source: "cgroup", Destination: cgroupMount,
	Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}}

// environment returns the variables that every program expects, overridden by those of this one.
func (b *box) environment() (env []string) {
	all := map[string]string{"PATH": searchPath, "HOME": "/", "HOSTNAME": sandboxOf(b.spec.ID)}
	if b.spec.Program.UID == 0 {
		all["HOME"] = "/root"
	}
	for name, value := range b.spec.Program.Env {
		all[name] = value
	}
	for name, value := range all {
		env = append(env, name+"="+value)
	}
	return env
}

// files writes the files of the sandbox's own names and address, and returns their mounts.
func (b *box) files() (all []specs.Mount, err error) {
	hosts, name := "127.0.0.1 localhost\n::1 localhost\n", sandboxOf(b.spec.ID)
	contents := map[string]string{"hostname": name + "\n"}
	if nic := b.spec.NIC; nic != nil {
		hosts += nic.Address.Addr().String() + " " + name + "\n"
		contents["resolv.conf"] = "nameserver " + nic.DNS.String() + "\n"
	}
	contents["hosts"] = hosts
	for name, text := range contents {
		file := filepath.Join(b.spec.Dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return nil, err
		}
		all = append(all, specs.Mount{Type: "bind", Source: file,
			Destination: "/etc/" + name,
			Options:     []string{"bind", "ro", "nosuid", "nodev", "noexec"}})
	}
	given, err := b.given()
	return append(all, given...), err
}

// given writes the files that the program is given. Others find them by the mounts alone.
func (b *box) given() (all []specs.Mount, err error) {
	sources, err := mounts.Write(filepath.Join(b.spec.Dir, "mounts"), b.spec.Program.Mounts)
	if err != nil {
		return nil, err
	}
	for i, m := range b.spec.Program.Mounts {
		if m.Shared != "" {
			at, err := b.shared(m)
			if err != nil {
				return nil, err
			}
			all = append(all, specs.Mount{Type: "bind", Source: at, Destination: m.Path,
				Options: []string{"bind", "nosuid", "nodev"}})
			continue
		}
		if m.Room > 0 {
			all = append(all, specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: m.Path,
				Options: append([]string{"nosuid", "nodev"}, strings.Split(m.Tmpfs(), ",")...)})
			continue
		}
		all = append(all, specs.Mount{Type: "bind", Source: sources[i], Destination: m.Path,
			Options: []string{"bind", "ro", "nosuid", "nodev"}})
	}
	return all, nil
}
