package attach_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/beside"
	"github.com/fastiov/fastiov/node-agent/cni/cnitest"
	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

// apart is set where the tests have a network namespace of their own.
const apart = "FASTIOV_TEST_CNI_APART"

// The tests run once more in a network namespace of their own: they make interfaces.
func TestMain(m *testing.M) {
	if playedRole() {
		return
	}
	if os.Getuid() != 0 || os.Getenv(apart) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), apart+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A host is a node with emulated VFs, and the folder where a runtime looks for plugins.
type host struct {
	*cnitest.Node
	cfg     vf.Config
	plugins string
	runtime *libcni.CNIConfig
}

const (
	vfs  = 6
	kept = 4 // the last of them
)

func vfAt(index int) string { return fmt.Sprintf("0000:01:10.%d", index) }

func newHost(t *testing.T) *host {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("interfaces and network namespaces are root's to make")
	}
	tree, err := cnitest.Make(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cnitest.FollowBinding(tree)
	h := &host{cfg: cnitest.Config(tree, vfs, kept), plugins: t.TempDir()}
	h.start(t, tree)
	t.Cleanup(func() {
		if h.Node != nil {
			h.Stop()
		}
		if v := tree.Violations(); v != "" {
			t.Errorf("the pool did what it never may:\n%s", v)
		}
	})
	program, err := beside.CNI.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	to, err := os.OpenFile(filepath.Join(h.plugins, "fastiov"), os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, program); err != nil {
		t.Fatal(err)
	}
	to.Close()
	h.runtime = libcni.NewCNIConfigWithCacheDir([]string{h.plugins}, t.TempDir(), nil)
	return h
}

func (h *host) start(t *testing.T, tree *vftest.Tree) {
	t.Helper()
	node, err := cnitest.Start(h.cfg, tree, cnitest.Wires(tree))
	if err != nil {
		t.Fatal(err)
	}
	h.Node = node
}

// list is the configuration of a network with one plugin, fastiov, with those keys.
func (h *host) list(t *testing.T, version, keys string) *libcni.NetworkConfigList {
	t.Helper()
	plugin := fmt.Sprintf(`{"type":"fastiov","runDir":%q%s}`,
		h.cfg.Run, strings.TrimRight(","+keys, ","))
	text := fmt.Sprintf(`{"cniVersion":%q,"name":"net","plugins":[%s]}`, version, plugin)
	list, err := libcni.ConfListFromBytes([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// container is a network namespace with a path, until the test ends it.
type container struct {
	libcni.RuntimeConf
	path string
	file *os.File
}

func newContainer(t *testing.T, id string) *container {
	t.Helper()
	file, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), id)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	from := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	if err := unix.Mount(from, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	c := &container{libcni.RuntimeConf{ContainerID: id, NetNS: path, IfName: "eth0"}, path, file}
	t.Cleanup(c.end)
	return c
}

// end takes the path away, and with it the namespace.
func (c *container) end() {
	_ = unix.Unmount(c.path, unix.MNT_DETACH)
	_ = os.Remove(c.path)
	c.file.Close()
}

// link is the container's interface, with its addresses; nil where it has none.
func (c *container) link(t *testing.T) (link netlink.Link, addresses, routes []string) {
	t.Helper()
	err := netns.Inside(c.file, whole(func() error {
		addresses, routes = nil, nil
		var err error
		if link, err = netlink.LinkByName(c.IfName); err != nil {
			link = nil
			return nil
		}
		has, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		for _, a := range has {
			if a.Scope == int(netlink.SCOPE_UNIVERSE) {
				addresses = append(addresses, a.IPNet.String())
			}
		}
		leads, routeErr := netlink.RouteList(link, netlink.FAMILY_ALL)
		for _, r := range leads {
			if r.Gw != nil {
				routes = append(routes, fmt.Sprintf("%s by %s", r.Dst, r.Gw))
			}
		}
		return errorsOf(err, routeErr)
	}))
	if err != nil {
		t.Fatal(err)
	}
	return link, addresses, routes
}

// whole does a look at the kernel's lists again where one of them changed meanwhile.
func whole(look func() error) func() error {
	return func() (err error) {
		for range 10 {
			if err = look(); !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		return err
	}
}

// routed returns the routes that a filter lets through.
func routed(filter *netlink.Route, by uint64) (routes []netlink.Route, err error) {
	err = whole(func() error {
		routes, err = netlink.RouteListFiltered(netlink.FAMILY_V4, filter, by)
		return err
	})()
	return routes, err
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// ip runs ip in the container.
func (c *container) ip(t *testing.T, args string) {
	t.Helper()
	err := netns.Inside(c.file, func() error {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (h *host) add(t *testing.T, list *libcni.NetworkConfigList, c *container) *current.Result {
	t.Helper()
	got, err := h.runtime.AddNetworkList(t.Context(), list, &c.RuntimeConf)
	if err != nil {
		t.Fatal(err)
	}
	result, err := current.NewResultFromResult(got)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func (h *host) del(t *testing.T, list *libcni.NetworkConfigList, c *container) {
	t.Helper()
	if err := h.runtime.DelNetworkList(t.Context(), list, &c.RuntimeConf); err != nil {
		t.Fatal(err)
	}
}

// idle fails the test unless all VFs come back.
func (h *host) idle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	if err := h.Idle(ctx, vfs); err != nil {
		t.Error(err)
	}
}

func asJSON(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}
