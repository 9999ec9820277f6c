package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

const UsualAddress = "/run/containerd/containerd.sock" // of containerd, on most machines

// Running returns the usual address if a containerd listens there, or "".
func Running() string {
	conn, err := net.Dial("unix", UsualAddress)
	if err != nil {
		return ""
	}
	conn.Close()
	return UsualAddress
}

// A noted driver is what Clear needs to know of one that was killed.
type noted struct{ Address, Namespace string }

func noteFile(dir string) string { return filepath.Join(dir, "driver.json") }

func (d *Driver) note() error {
	text, err := json.Marshal(noted{d.Address, d.Namespace})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.Dir, 0o711); err != nil {
		return err
	}
	file := noteFile(d.Dir)
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// Clear ends all containers of the driver whose Dir that is, and removes what it kept. No driver
// may be open there. Where there was none, Clear does nothing.
func Clear(ctx context.Context, dir string, log *slog.Logger) error {
	text, err := os.ReadFile(noteFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var n noted
	if err == nil {
		err = json.Unmarshal(text, &n)
	}
	if err != nil {
		return fmt.Errorf("%s: %w; end the containers by `ctr`, and remove %s", noteFile(dir), err,
			dir)
	}
	d, err := Open(ctx, Config{Address: n.Address, Namespace: n.Namespace, Dir: dir, Log: log})
	if err != nil {
		return err
	}
	containers, err := d.client.Containers(d.named(ctx))
	ids := d.cgroups()
	for _, c := range containers {
		ids = append(ids, c.ID())
	}
	for _, id := range ids {
		d.end(sandbox.Spec{ID: id, Dir: filepath.Join(dir, "nothing", id)})
	}
	left := d.Leftovers(nil)
	d.Close()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("containerd has not ended %s", left)
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
