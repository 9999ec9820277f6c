package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Hundreds of threads enter and leave, and this process stays where it was.
func TestInside(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	var listener net.Listener
	if err := Inside(namespace, func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:1")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			if err := Inside(namespace, func() error {
				if now, err := os.Readlink("/proc/self/ns/net"); now != here || err != nil {
					t.Errorf("/proc shows this process in %s, %v", now, err)
				}
				conn, err := net.Dial("tcp", "127.0.0.1:1")
				if err == nil {
					conn.Close()
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			if conn, err := net.Dial("tcp", "127.0.0.1:1"); err == nil {
				conn.Close()
				t.Error("a thread stayed inside")
			}
		})
	}
	all.Wait()
	if now, err := os.Readlink("/proc/self/ns/net"); now != here || err != nil {
		t.Errorf("this process was in %s and is in %s, %v", here, now, err)
	}
}

// A path leads into a namespace, and one that leads nowhere is said to be missing.
func TestAt(t *testing.T) {
	namespace := fresh(t)
	defer namespace.Close()
	var names []string
	if err := At(fmt.Sprintf("/proc/self/fd/%d", namespace.Fd()), func() error {
		links, err := Links()
		for _, link := range links {
			names = append(names, link.Attrs().Name)
		}
		return err
	}); err != nil || !slices.Equal(names, []string{"lo"}) {
		t.Errorf("inside there are %q, %v", names, err)
	}
	for path, want := range map[string]error{"/nonexistent": fs.ErrNotExist,
		os.DevNull: unix.EINVAL} {
		if err := At(path, func() error { return nil }); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
}

// The links of a namespace are listed, each with its name.
func TestLinks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	namespace, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	var names []string
	if err := Inside(namespace, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "here"
		made := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "there"})
		links, err := Links()
		for _, link := range links {
			names = append(names, link.Attrs().Name)
		}
		return errors.Join(made, err)
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"here", "lo", "there"}) {
		t.Errorf("listed are %q", names)
	}
}

// A request for links has no attributes, so none that asks for VFs: only real cards have those.
func TestLinksAsksForNoVFs(t *testing.T) {
	bare := unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	if asked := allLinks().Serialize(); len(asked) != bare {
		t.Errorf("a request of %d bytes, want %d: % x", len(asked), bare, asked)
	}
}
