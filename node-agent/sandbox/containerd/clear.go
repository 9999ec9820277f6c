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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

const UsualAddress = "/run/containerd/containerd.sock" // of containerd, on most machines

// answers reports whether somebody listens at address before the time is over.
func answers(address string, within time.Duration) bool {
	for until := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		conn, err := net.Dial("unix", address)
		if err == nil {
			conn.Close()
			return true
		}
		if time.Now().After(until) {
			return false
		}
	}
}

// A noted driver is what a later one, or Clear, needs to know of one that was killed.
type noted struct {
	Address   string // empty: of a containerd that the driver started
	Namespace string
}

func rootsDir(dir string) string    { return filepath.Join(dir, "roots") }
func writableDir(dir string) string { return filepath.Join(dir, "writable") }
func daemonDir(dir string) string   { return filepath.Join(dir, "containerd") }

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

// readNote returns what a driver has noted, or nil.
func readNote(dir string) (*noted, error) {
	text, err := os.ReadFile(noteFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	n := &noted{}
	if err == nil {
		err = json.Unmarshal(text, n)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; end the containers by `ctr`, and remove %s", noteFile(dir),
			err, dir)
	}
	return n, nil
}

// choose settles on a containerd: the one that was asked for, or that of a former agent whose
// sandboxes may live, or the machine's, or one of the driver's own. Sandboxes in another one are
// ended, since nobody could adopt them.
func (d *Driver) choose(ctx context.Context) error {
	former, err := readNote(d.Dir)
	if err != nil {
		return err
	}
	switch {
	case d.Address != "":
	case former != nil && (former.Address == "" || answers(former.Address, patience)):
		d.Address = former.Address
	case answers(UsualAddress, 0):
		d.Address = UsualAddress
	}
	if former == nil || former.Address == d.Address {
		return nil
	}
	return Clear(ctx, d.Dir, d.Log)
}

// Clear ends all containers of the driver whose Dir that is, and removes what it kept. No driver
// may be open there. Where there was none, Clear does nothing; where their containerd is gone, it
// ends them by their cgroups.
func Clear(ctx context.Context, dir string, log *slog.Logger) error {
	n, err := readNote(dir)
	if n == nil || err != nil {
		return err
	}
	var d *Driver
	theirs := n.Address != "" && answers(n.Address, 0)
	if err = errAway; n.Address == "" || theirs {
		d, err = Open(ctx, Config{Address: n.Address, Namespace: n.Namespace, Dir: dir, Log: log})
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case theirs: // it would keep them for ever
		return fmt.Errorf("what is left in a containerd: %w; restart it, or stop it to have its"+
			" containers ended without it", err)
	default:
		log.Warn("there is no containerd; its containers are ended without it", "err", err,
			"address", n.Address)
		(&Driver{Config: Config{Namespace: n.Namespace}}).endAll()
		unmountOver(writableDir(dir))
		for _, mounts := range []string{rootsDir(dir), writableDir(dir)} {
			unmountAll(mounts)
		}
		return os.RemoveAll(dir)
	}
	containers, err := d.client.Containers(d.named(ctx))
	ids := d.cgroups()
	for _, c := range containers {
		ids = append(ids, sandboxOf(c.ID()))
	}
	slices.Sort(ids)
	var ending sync.WaitGroup
	for _, id := range slices.Compact(ids) { // side by side: each may take its time
		ending.Go(func() {
			d.endFound(ctx, sandbox.Spec{ID: id, Dir: filepath.Join(dir, "nothing", id)})
		})
	}
	ending.Wait()
	left := d.Leftovers(nil)
	if len(left) == 0 {
		d.shims().kill() // one that containerd has lost has no container
	}
	d.Close()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("containerd has not ended %s", left)
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// unmountOver unmounts the roots of containers, wherever their containerd had them: they are told
// by the folder that they write to. While one is mounted, what a tenant wrote is not freed.
func unmountOver(writable string) {
	plain := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		about, of, _ := strings.Cut(line, " - overlay ")
		if strings.Contains(plain.Replace(of), "upperdir="+writable+"/") {
			unmount(plain.Replace(strings.Fields(about)[4]))
		}
	}
}

var errAway = errors.New("nobody listens there")

// endAll ends all sandboxes and their shims by their cgroups.
func (d *Driver) endAll() {
	groups := []group{d.shims()}
	for _, id := range d.cgroups() {
		groups = append(groups, d.cgroup(sandbox.Spec{ID: id}))
	}
	for _, g := range append(groups, group{path: filepath.Join("/", d.Namespace)}) {
		g.kill()
		g.remove()
	}
	d.clearStates()
	unloadProfile(d.Namespace)
}
