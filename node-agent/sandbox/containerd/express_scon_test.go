//go:build scon

package containerd

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netpath/scon"
)

// With the tag, the bridge of each host of this package's tests has its express path, and the host
// a way out.
func init() {
	connected = func(t *testing.T) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "uplink"
		out := &netlink.Veth{LinkAttrs: attrs, PeerName: "world"}
		if err := netlink.LinkAdd(out); err != nil {
			t.Fatal(err)
		}
		pins := t.TempDir()
		cfg := scon.Config{Bridge: "fastiov0", Uplinks: []string{"uplink"}, Records: t.TempDir(),
			Pins: filepath.Join(pins, "scon"), Settings: true, Log: slog.New(slog.DiscardHandler)}
		s, err := scon.Attach(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			s.Close()
			// The bridge has gone by now.
			err := errors.Join(scon.DetachGone(cfg.Records), netlink.LinkDel(out))
			if left := scon.Attached(cfg.Records); err != nil || len(left) > 0 {
				t.Errorf("left attached: %v, %v", left, err)
			}
			_ = unix.Unmount(pins, 0)
		})
	}
}
