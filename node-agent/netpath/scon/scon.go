package scon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The programs are compiled by the clang that versions.yaml names.
//go:generate ./generate

// Where attachments are by default: what was there before, and the pins of links and maps.
const (
	Records = "/run/fastiov/scon"
	Pins    = "/sys/fs/bpf/fastiov-scon"
)

// Config describes an attachment, in the network namespace of the caller.
type Config struct {
	Bridge  string   // whose ports are sped up
	Uplinks []string // the devices that its containers go out by
	Records string   // the folder of what was there before
	Pins    string   // a folder in a BPF file system
	// Settings lets conntrack be told to accept TCP that it has not seen whole. Without it, TCP is
	// express only where somebody else has told it.
	Settings bool
	Log      *slog.Logger

	ByAge bool // entries hold by their age alone, as the paper has it: a control
}

// A Scon is an attachment that is followed: its ports, and the rules. The programs do not need it:
// they stay when it is closed or killed.
type Scon struct {
	Config
	bridge   int
	first    bool // nobody had attached before
	programs programObjects

	mu      sync.Mutex
	hooked  map[int]string // devices by their index
	refused []Refusal

	closing chan struct{}
	ended   chan struct{}
	look    chan struct{}
	all     sync.WaitGroup
	ends    []func()
}

// A record says what Detach has to know.
type record struct {
	Bridge   string
	Index    int
	Uplinks  []string
	Pins     string
	Settings map[string]string `json:",omitempty"` // as they were
}

// Attach attaches the programs to the bridge's ports and to the uplinks, or takes over those that
// are attached already, and follows until Close.
func Attach(cfg Config) (_ *Scon, err error) {
	s := &Scon{Config: cfg, hooked: map[int]string{}, closing: make(chan struct{}),
		ended: make(chan struct{}), look: make(chan struct{}, 1)}
	defer func() {
		if err == nil {
			return
		}
		s.Close()
		if s.first {
			_ = Detach(s.Records, s.Bridge)
		}
	}()
	bridge, err := netlink.LinkByName(cfg.Bridge)
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", cfg.Bridge, err)
	}
	if bridge.Type() != "bridge" {
		return nil, fmt.Errorf("%s is no bridge but a %s", cfg.Bridge, bridge.Type())
	}
	if len(cfg.Uplinks) == 0 {
		return nil, errors.New("no uplink is named: the device that containers go out by")
	}
	s.bridge = bridge.Attrs().Index
	if err := os.MkdirAll(s.Records, 0o700); err != nil {
		return nil, err
	}
	unlock, err := lock(s.Records, s.Bridge)
	if err != nil {
		return nil, err
	}
	s.ends = append(s.ends, unlock)
	if err := s.record(); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	for _, name := range cfg.Uplinks {
		uplink, err := netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("uplink %s: %w", name, err)
		}
		if err := s.hook(uplink); err != nil {
			return nil, fmt.Errorf("uplink %s: %w", name, err)
		}
	}
	if err := s.follow(); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends the following. The programs stay, and are express as long as the rules stay as they
// are.
func (s *Scon) Close() {
	select {
	case <-s.closing:
		return
	default:
	}
	close(s.closing)
	for _, end := range s.ends {
		end()
	}
	s.all.Wait()
	s.programs.Close()
}

// Ended is closed when the following has ended by itself: the bridge is gone.
func (s *Scon) Ended() <-chan struct{} { return s.ended }

// load loads the programs and pins their maps in the place of those of a former agent. Entries of
// former programs are not taken over: each is learned again from its next packet.
func (s *Scon) load() error {
	if err := supported(); err != nil {
		return err
	}
	if err := bpffs(s.Pins); err != nil {
		return fmt.Errorf("BPF file system %s: %w", s.Pins, err)
	}
	if err := os.MkdirAll(s.pins(), 0o700); err != nil {
		return err
	}
	spec, err := loadProgram()
	if err != nil {
		return err
	}
	if err := spec.Variables[programVarByAge].Set(s.ByAge); err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&s.programs, nil); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	p := &s.programs
	for name, m := range map[string]interface{ Pin(string) error }{
		programMapConentries: p.Conentries, programMapContables: p.Contables,
		programMapPermits: p.Permits, programMapReasons: p.Reasons,
		programMapTurnedOff: p.TurnedOff, programProgGenerations: p.Generations,
		programProgWhy: p.Why,
	} {
		path := filepath.Join(s.pins(), name)
		_ = os.Remove(path)
		if err := m.Pin(path); err != nil {
			return fmt.Errorf("pin %s: %w", path, err)
		}
	}
	return nil
}

func (s *Scon) pins() string { return record{Index: s.bridge, Pins: s.Pins}.pins() }

func (r record) pins() string { return filepath.Join(r.Pins, strconv.Itoa(r.Index)) }

// supported tells what the kernel lacks.
func supported() error {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("the kernel does not describe its types (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	for _, need := range []struct{ in, field, what string }{
		{"netns_nftables", "base_seq", "when its rules changed"},
		{"nf_conn", "tuplehash", "its connections"},
	} {
		var t *btf.Struct
		if err := kernel.TypeByName(need.in, &t); err != nil {
			return fmt.Errorf("the kernel does not tell programs %s: %w", need.what, err)
		}
		has := false
		for _, member := range t.Members {
			has = has || member.Name == need.field
		}
		if !has {
			return fmt.Errorf("the kernel does not tell programs %s: its %s has no %s", need.what,
				need.in, need.field)
		}
	}
	return nil
}

// bpffs makes the folder of pins, with a BPF file system where there is none.
func bpffs(dir string) error {
	mount := filepath.Dir(dir)
	if err := os.MkdirAll(mount, 0o755); err != nil {
		return err
	}
	var is unix.Statfs_t
	if err := unix.Statfs(mount, &is); err != nil {
		return err
	}
	if is.Type != unix.BPF_FS_MAGIC {
		if err := unix.Mount("bpf", mount, "bpf", 0, "mode=700"); err != nil {
			return err
		}
	}
	return os.MkdirAll(dir, 0o700)
}

// hook attaches the programs to a device: behind others that look at what comes in, and before
// others that change what goes out.
func (s *Scon) hook(device netlink.Link) error {
	index := device.Attrs().Index
	for _, at := range []struct {
		name    string
		program *ebpf.Program
		attach  ebpf.AttachType
		anchor  link.Anchor
	}{
		{"arrive", s.programs.Arrive, ebpf.AttachTCXIngress, link.Tail()},
		{"compose", s.programs.Compose, ebpf.AttachTCXEgress, link.Head()},
	} {
		pin := filepath.Join(s.pins(), at.name+"-"+strconv.Itoa(index))
		if former, err := link.LoadPinnedLink(pin, nil); err == nil {
			err = former.Update(at.program)
			former.Close()
			if err == nil {
				continue
			}
		}
		_ = os.Remove(pin) // of a device that is gone
		l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: at.program,
			Attach: at.attach, Anchor: at.anchor})
		if err != nil {
			return fmt.Errorf("attach %s: %w", at.name, err)
		}
		err = l.Pin(pin)
		l.Close()
		if err != nil {
			return fmt.Errorf("pin %s: %w", pin, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooked[index] = device.Attrs().Name
	return nil
}

// unhook takes the programs off a device, and forgets what led from or to it.
func (s *Scon) unhook(index int) {
	for _, name := range []string{"arrive-", "compose-"} {
		unpin(filepath.Join(s.pins(), name+strconv.Itoa(index)))
	}
	s.mu.Lock()
	delete(s.hooked, index)
	s.mu.Unlock()
}

func unpin(pin string) {
	if l, err := link.LoadPinnedLink(pin, nil); err == nil {
		_ = l.Unpin()
		l.Close()
	}
	_ = os.Remove(pin)
}

func notAttached(records, bridge string) error {
	return fmt.Errorf("bridge %s has no express path: there is no %s; `fastiov scon attach` makes"+
		" one", bridge, recordOf(records, bridge))
}

func recordOf(dir, bridge string) string { return filepath.Join(dir, bridge+".json") }

// lock has the attachment be one process's, for as long as that lives.
func lock(records, bridge string) (unlock func(), err error) {
	path := filepath.Join(records, bridge+".lock")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		who, _ := os.ReadFile(path)
		file.Close()
		return nil, fmt.Errorf("process %s follows bridge %s; end that first", who, bridge)
	}
	err = file.Truncate(0)
	if err == nil {
		_, err = fmt.Fprint(file, os.Getpid())
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
}

// Followed reports whether a process follows the attachment.
func (v *View) Followed() bool {
	unlock, err := lock(filepath.Dir(v.file), v.Bridge)
	if err == nil {
		unlock()
	}
	return err != nil
}

// record writes down what is about to be changed, and changes the settings. What a former agent
// found counts, if there is one.
func (s *Scon) record() error {
	now := record{Bridge: s.Bridge, Index: s.bridge, Uplinks: s.Uplinks, Pins: s.Pins}
	former, err := readRecord(s.Records, s.Bridge)
	if err != nil {
		return err
	}
	if former != nil {
		now.Settings = former.Settings
		if former.Index != s.bridge { // another bridge had that name
			remove(former.pins())
		}
	}
	if s.Settings {
		if now.Settings == nil {
			now.Settings = map[string]string{}
		}
		for _, file := range settings {
			is, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("conntrack: %w; is nf_conntrack loaded?", err)
			}
			if _, known := now.Settings[file]; known {
				continue
			}
			now.Settings[file] = cmp.Or(found(s.Records, s.Bridge, file),
				strings.TrimSpace(string(is)))
		}
	}
	text, err := json.Marshal(now)
	if err != nil {
		return err
	}
	file := recordOf(s.Records, s.Bridge)
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	s.first = former == nil
	if !s.Settings {
		return nil
	}
	for _, file := range settings {
		if err := os.WriteFile(file, []byte("1"), 0); err != nil {
			return err
		}
	}
	return nil
}

// Without these settings conntrack would reset a connection whose packets it does not all see: it
// would take an answer to what went express for one to nothing, and let a reset leave without a
// translation.
var settings = []string{
	"/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal",
	"/proc/sys/net/netfilter/nf_conntrack_tcp_ignore_invalid_rst",
}

func readRecord(dir, bridge string) (*record, error) {
	file := recordOf(dir, bridge)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := &record{}
	if err == nil {
		err = json.Unmarshal(text, r)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove it", file, err)
	}
	return r, nil
}

// Detach takes the programs off, and puts back the settings that were changed, whoever attached
// them and whether or not that process lives. It may run twice.
func Detach(records, bridge string) error {
	r, err := readRecord(records, bridge)
	if err != nil {
		return err
	}
	if r == nil {
		return notAttached(records, bridge)
	}
	unlock, err := lock(records, bridge)
	if err != nil {
		return err
	}
	defer unlock()
	remove(r.pins())
	if len(r.Settings) > 0 {
		if failed := tolerate(); failed != nil {
			err = fmt.Errorf("connections that went express: %w", failed)
		}
	}
	for file, was := range r.Settings {
		if found(records, bridge, file) != "" { // that attachment needs it still
			continue
		}
		err = errors.Join(err, os.WriteFile(file, []byte(was), 0))
	}
	if err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(records, bridge+".lock"))
	return os.Remove(recordOf(records, bridge))
}

// found returns what another attachment found in a setting that it needs, too; empty: none does.
func found(records, but, file string) string {
	for _, name := range Attached(records) {
		if name == but {
			continue
		}
		if r, err := readRecord(records, name); err == nil && r != nil && r.Settings[file] != "" {
			return r.Settings[file]
		}
	}
	return ""
}

// remove removes the pins of an attachment, and with them its links, maps and programs.
func remove(dir string) {
	files, _ := os.ReadDir(dir)
	for _, file := range files {
		unpin(filepath.Join(dir, file.Name()))
	}
	_ = os.Remove(dir)
}
