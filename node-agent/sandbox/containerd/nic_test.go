package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A card has one interface that sandboxes are given, as a VF is. It is an end of a veth pair, and
// so gone for ever if it is in a network namespace that goes.
type card struct {
	*testing.T
	own    *os.File
	driver *Driver
	taken  int // out of sandboxes, before their namespaces went
	link   error
}

const (
	onCard    = "card0"
	inSandbox = "eth0"
)

func newCard(t *testing.T) *card {
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: onCard}, PeerName: "wire0"}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = netlink.LinkDel(pair)
		own.Close()
	})
	return &card{T: t, own: own}
}

func move(from *os.File, name string, to *os.File, as string) error {
	return netns.Inside(from, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetName(link, as); err != nil {
			return err
		}
		return netlink.LinkSetNsFd(link, int(to.Fd()))
	})
}

func (c *card) plug(context.Context, *sandbox.NIC) (*os.File, error) {
	namespace, err := netns.New()
	if err != nil {
		return nil, err
	}
	return namespace, move(c.own, onCard, namespace, inSandbox)
}

func (c *card) linked(context.Context, *os.File) error { return c.link }

func (c *card) unplug(nic *sandbox.NIC, namespace *os.File) error {
	c.taken++
	if groups := c.driver.cgroups(); len(groups) > 0 {
		c.Errorf("it is taken from processes that live: cgroups %q", groups)
	}
	return move(namespace, inSandbox, c.own, onCard)
}

// here checks that the interface has come back once more.
func (c *card) here(after string, times int) {
	c.Helper()
	if _, err := netlink.LinkByName(onCard); err != nil || c.taken != times {
		c.Errorf("after %s: %v, taken out %d times, want %d", after, err, c.taken, times)
	}
}

// A NIC that outlives its sandbox is taken out of it before the network namespace goes: by the
// sandbox's end, by a start that fails, by the end of one whose agent is gone, and whether or not
// it ever got a link.
func TestANICOutlivesItsSandbox(t *testing.T) {
	h := newHost(t)
	c := newCard(t)
	h.config.Plug, h.config.Linked, h.config.Unplug = c.plug, c.linked, c.unplug
	open := func() *Driver {
		c.driver = h.open()
		return c.driver
	}
	spec := func(id string, p wire.Program) sandbox.Spec {
		dir := filepath.Join(t.TempDir(), id)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return sandbox.Spec{ID: id, Dir: dir, Root: h.root, Program: p, MemoryMiB: 256,
			NIC: &sandbox.NIC{Kind: "vf", PCI: &sandbox.PCI{BDF: "0000:01:10.0"}}}
	}
	tl := &timeline.Timeline{}
	start := func(d *Driver, id string, p wire.Program) (s sandbox.Sandbox, rec sandbox.Record,
		err error) {
		s, err = d.Start(t.Context(), spec(id, p), tl,
			func(r sandbox.Record) error {
				rec = r
				return nil
			})
		return s, rec, err
	}

	d := open()
	s, _, err := start(d, "ends", h.program())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName(onCard); err == nil {
		t.Error("the sandbox does not have it")
	}
	if !slices.ContainsFunc(tl.Spans(), ofLink) {
		t.Errorf("the link has no stage in %v", tl.Spans())
	}
	s.Close()
	c.here("the sandbox's end", 1)

	if _, _, err := start(d, "fails", wire.Program{Command: []string{"/nothing"}}); err == nil {
		t.Error("a program that is not there started")
	}
	c.here("a start that failed", 2)

	c.link = fmt.Errorf("%s has no link", inSandbox)
	if _, _, err := start(d, "lacks", h.program()); !errors.Is(err, c.link) {
		t.Errorf("without a link: %v", err)
	}
	c.here("a link that never came", 3)

	c.link = nil
	_, rec, err := start(d, "stays", h.program())
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	d = open()
	defer d.Close()
	d.End(rec.Spec)
	c.here("the end of one that nobody has adopted", 4)
}

func ofLink(s timeline.Span) bool { return s.Stage == timeline.VFDriver }
