// Package vftest makes a host with SR-IOV devices for tests: a device tree of plain files under one
// directory, in which writes have the effects that a kernel would give them.
//
// All of its state is files, so that a second process can go on with the tree of a first that was
// killed. A vfio group is held by a lock on its node, which ends with its holder, as an open group
// does. What must never happen (a held VF is reset, unbound or removed) is written down in the file
// "violations" and read back by Violations.
package vftest

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/node-agent/vf"
)

// A Tree is the emulated host. It is the Kernel and the Network of a pool.
type Tree struct {
	Dir       string
	ResetTime time.Duration // how long a reset takes
	mu        sync.Mutex    // guards the files against each other
	refuse    atomic.Pointer[func(op, bdf string) error]
	watchers  map[chan struct{}]struct{} // one for each Watch
	Refused   chan string                // DMA accesses that the IOMMU refused, by device
	writes    atomic.Int64
}

// New makes an empty host under dir, or goes on with the one that is there.
func New(dir string) (*Tree, error) {
	h := &Tree{Dir: dir, watchers: map[chan struct{}]struct{}{}, Refused: make(chan string)}
	for _, d := range []string{"sys/bus/pci/devices", "sys/bus/pci/drivers/vfio-pci",
		"sys/kernel/iommu_groups", "dev/vfio", "settings", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	return h, h.put("sys/bus/pci/drivers_probe", "")
}

// Refuse makes steps fail from now on. f is called at every reset, probe, unbind, numvfs and setvf,
// and may also count or block. With nil every step succeeds.
func (h *Tree) Refuse(f func(op, bdf string) error) {
	if f == nil {
		h.refuse.Store(nil)
		return
	}
	h.refuse.Store(&f)
}

// A TB is the part of a test that a tree is made for.
type TB interface {
	Helper()
	TempDir() string
	Fatal(...any)
}

// Make is New in a directory of t.
func Make(t TB) *Tree {
	t.Helper()
	h, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Config is a pool's configuration for this host.
func (h *Tree) Config() vf.Config {
	return vf.Config{Run: h.path("run"), Sysfs: h.path("sys"), Dev: h.path("dev"), Kernel: h,
		Network: h, Node: "vftest"}
}

// A PF describes a physical function to add.
type PF struct {
	BDF      string // its VFs are 0000:BB:10.0 and on, with BB its bus
	Driver   string // igb, nvme
	Mute     bool   // the driver of its VFs makes no netdev
	VFDriver string // the native driver of its VFs
	Netdev   string // empty: it has none
	VFs      int    // at most
}

// IGB is a network PF with 7 VFs, NVMe a storage one without a netdev.
var (
	IGB  = PF{BDF: "0000:01:00.0", Driver: "igb", VFDriver: "igbvf", Netdev: "eth1", VFs: 7}
	NVMe = PF{BDF: "0000:02:00.0", Driver: "nvme", VFDriver: "nvme", VFs: 16}
)

// AddPF adds a PF without VFs, its link up once it is set up.
func (h *Tree) AddPF(pf PF) error {
	data, err := json.Marshal(pf)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, driver := range []string{pf.Driver, pf.VFDriver} {
		if err := os.MkdirAll(h.path("sys/bus/pci/drivers", driver), 0o755); err != nil {
			return err
		}
		if err := h.put(filepath.Join("sys/bus/pci/drivers", driver, "unbind"), ""); err != nil {
			return err
		}
	}
	err = h.putAll(device(pf.BDF), map[string]string{"sriov_totalvfs": strconv.Itoa(pf.VFs),
		"sriov_numvfs": "0", "sriov_drivers_autoprobe": "1", "pf.json": string(data)})
	if err != nil {
		return err
	}
	if err := h.link("../../drivers/"+pf.Driver, device(pf.BDF), "driver"); err != nil {
		return err
	}
	return h.addNetdev(pf.BDF, pf.Netdev)
}

func (h *Tree) addNetdev(bdf, netdev string) error {
	if netdev == "" {
		return nil
	}
	return h.putAll(filepath.Join(device(bdf), "net", netdev),
		map[string]string{"flags": "0x1002", "carrier": "0", "address": AddressOf(netdev)})
}

// AddressOf returns the MAC of a netdev's own.
func AddressOf(netdev string) string {
	sum := sha256.Sum256([]byte(netdev))
	return fmt.Sprintf("06:%02x:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3], sum[4])
}

func (h *Tree) pf(bdf string) (PF, error) {
	var pf PF
	data, err := os.ReadFile(h.path(device(bdf), "pf.json"))
	if err != nil {
		return pf, err
	}
	return pf, json.Unmarshal(data, &pf)
}

// vfOf is the address of VF i: the standard leaves it to the device; here 16 devices further on.
func vfOf(pf string, i int) string {
	return fmt.Sprintf("%s:%02x.%d", strings.TrimSuffix(pf, ":00.0"), 0x10+i/8, i%8)
}

func device(bdf string) string { return filepath.Join("sys/bus/pci/devices", bdf) }

func (h *Tree) path(elem ...string) string { return filepath.Join(h.Dir, filepath.Join(elem...)) }

func (h *Tree) put(path, text string) error { return h.replace(path, []byte(text+"\n")) }

// replace writes a file whole: the process may be killed at any time, and in a real sysfs no value
// is half written.
func (h *Tree) replace(path string, data []byte) error {
	f, err := os.CreateTemp(h.Dir, ".new-") // no directory of the tree may ever list it
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), h.path(path))
}

func (h *Tree) putAll(dir string, files map[string]string) error {
	if err := os.MkdirAll(h.path(dir), 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := h.put(filepath.Join(dir, name), text); err != nil {
			return err
		}
	}
	return nil
}

func (h *Tree) link(target, dir, name string) error {
	path := h.path(dir, name)
	_ = os.Remove(path)
	return os.Symlink(target, path)
}

func (h *Tree) get(path string) string {
	data, _ := os.ReadFile(h.path(path))
	return strings.TrimSpace(string(data))
}

// Driver returns the driver that bdf is bound to, or "".
func (h *Tree) Driver(bdf string) string {
	target, err := os.Readlink(h.path(device(bdf), "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// Get reads a file of a device.
func (h *Tree) Get(bdf, file string) string { return h.get(filepath.Join(device(bdf), file)) }
