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
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The programs are compiled by the clang that versions.yaml names.
//go:generate ./generate

// Pins is the folder of the pins of links and maps by default.
const Pins = "/sys/fs/bpf/fastiov-scon"

// Records returns where is by default what was there before: a folder for each network namespace,
// since bridges of several may have one name.
func Records() string { return fmt.Sprintf("/run/fastiov/scon/%d", networkNamespace()) }

// networkNamespace returns the inode of the caller's.
func networkNamespace() uint64 {
	number, _ := inode("/proc/thread-self/ns/net") // nothing is attached without one
	return number
}

// Config describes an attachment, in the network namespace of the caller.
type Config struct {
	Bridge string // whose ports are sped up
	// The devices that its containers go out by; without a name, those that the host's default
	// routes lead by, whichever these are from now on.
	Uplinks []string
	Records string // the folder of what was there before
	Pins    string // a folder in a BPF file system
	// Settings lets conntrack be told to accept TCP that it has not seen whole. Without it, TCP is
	// express only where somebody else has told it.
	Settings bool
	Log      *slog.Logger `json:"-"`

	Owner string // whose bridge it is: a node's run directory, or nobody's
	ByAge bool   // entries hold by their age alone, as the paper has it: a control
}

// A Scon is an attachment that is followed: its ports, and the rules. The programs do not need it:
// they stay when it is closed or killed.
type Scon struct {
	Config
	bridge    int
	first     bool // nobody had attached before
	programs  programs
	at        generationAt
	whole     uint64 // the generation of rules that was last seen to be committed
	rules     *ruleset
	due       time.Time // when an entry may be idle
	tolerates bool      // conntrack does, as it was told
	seen      bool      // the devices are, as they were announced last

	mu      sync.Mutex
	hooked  map[int]string // devices by their index
	out     []string       // the uplinks
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
	Netns    uint64
	Pins     string
	Owner    *string           // nil: of a version that wrote down no owner
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
	s.bridge = bridge.Attrs().Index
	for _, name := range cfg.Uplinks {
		if _, err := netlink.LinkByName(name); err != nil {
			return nil, fmt.Errorf("uplink %s: %w", name, err)
		}
	}
	if s.at, err = findGeneration(); err != nil {
		return nil, err
	}
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
	if err := s.follow(); err != nil {
		return nil, err
	}
	s.unhookFormer()
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

// programs are all that bpf2go has a field for, and the permits, whose map is a section of data.
type programs struct {
	programObjects
	Permits *ebpf.Map `ebpf:".data.permits"`
}

func (p *programs) Close() {
	p.programObjects.Close()
	p.Permits.Close()
}

// load loads the programs and pins their maps in the place of those of a former agent. Entries of
// former programs are not taken over: each is learned again from its next packet. What the operator
// has turned off stays off, and counts go on.
func (s *Scon) load() (err error) {
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
	err = errors.Join(s.at.tell(spec), spec.Variables[programVarByAge].Set(s.ByAge))
	if err != nil {
		return err
	}
	kept := map[string]*ebpf.Map{}
	for _, name := range []string{programMapTurnedOff, programMapReasons} {
		former, err := ebpf.LoadPinnedMap(filepath.Join(s.pins(), name), nil)
		if err != nil {
			continue
		}
		defer former.Close()
		switch {
		case spec.Maps[name].Compatible(former) == nil:
			kept[name] = former
		case name == programMapTurnedOff: // that of another version
			s.Log.Warn("flows that were turned off for a former version of fastiov may go express;"+
				" turn them off again", "bridge", s.Bridge)
		}
	}
	if err := spec.LoadAndAssign(&s.programs,
		&ebpf.CollectionOptions{MapReplacements: kept}); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	p := &s.programs
	for name, m := range map[string]interface{ Pin(string) error }{
		programMapConentries: p.Conentries, programMapContables: p.Contables,
		programVarPermits: p.Permits, programMapReasons: p.Reasons,
		programMapTurnedOff: p.TurnedOff, programProgGenerations: p.Generations,
		programProgWhy: p.Why, programProgExpire: p.Expire,
	} {
		path := filepath.Join(s.pins(), name)
		_ = os.Remove(path)
		if err := m.Pin(path); err != nil {
			return fmt.Errorf("pin %s: %w", path, err)
		}
	}
	return nil
}

func (s *Scon) pins() string {
	return record{Index: s.bridge, Netns: networkNamespace(), Pins: s.Pins}.pins()
}

func (r record) pins() string {
	return filepath.Join(r.Pins, fmt.Sprintf("%d-%d", r.Netns, r.Index))
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

// unhookFormer takes the programs off devices that a former agent had hooked and that are neither
// ports nor uplinks any more.
func (s *Scon) unhookFormer() {
	for _, index := range hookedIn(s.pins()) {
		s.mu.Lock()
		_, is := s.hooked[index]
		s.mu.Unlock()
		if !is {
			s.unhook(index)
		}
	}
}

// hookedIn returns the devices that have pins in an attachment's folder.
func hookedIn(dir string) (devices []int) {
	pins, _ := filepath.Glob(filepath.Join(dir, "arrive-*"))
	for _, pin := range pins {
		_, number, _ := strings.Cut(filepath.Base(pin), "-")
		if index, err := strconv.Atoi(number); err == nil {
			devices = append(devices, index)
		}
	}
	return devices
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
	path := lockOf(records, bridge)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, exclusive()); err != nil {
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

func lockOf(records, bridge string) string { return filepath.Join(records, bridge+".lock") }

func exclusive() *unix.Flock_t { return &unix.Flock_t{Type: unix.F_WRLCK} }

// Followed reports whether a process follows the attachment.
func (v *View) Followed() bool {
	file, err := os.Open(lockOf(filepath.Dir(v.file), v.Bridge))
	if err != nil {
		return false
	}
	defer file.Close()
	is := exclusive()
	return unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, is) == nil && is.Type != unix.F_UNLCK
}

// record writes down what is about to be changed, and changes the settings. What a former agent
// found counts, if there is one.
func (s *Scon) record() error {
	owner := s.Owner
	if owner != "" {
		owner = filepath.Clean(owner)
	}
	now := record{Bridge: s.Bridge, Index: s.bridge, Netns: networkNamespace(), Pins: s.Pins,
		Owner: &owner}
	former, err := readRecord(s.Records, s.Bridge)
	if err != nil {
		return err
	}
	if former != nil {
		now.Settings = former.Settings
		if former.pins() != now.pins() { // another bridge had that name
			remove(former.pins())
		}
	}
	if s.Settings {
		if now.Settings == nil {
			now.Settings = map[string]string{}
		}
		for _, file := range Settings {
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
	s.first, s.tolerates = former == nil, s.Settings
	if !s.Settings {
		return nil
	}
	for _, file := range Settings {
		if err := os.WriteFile(file, []byte("1"), 0); err != nil {
			return err
		}
	}
	return nil
}

// Settings lists what conntrack is told by. Without that it would reset a connection whose packets
// it does not all see: it would take an answer to what went express for one to nothing, and let a
// reset leave without a translation.
var Settings = []string{
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
	return r.undo(records)
}

// DetachOwn detaches where the owner attached, and nobody else has since; it returns whether. What
// has no owner written down is taken for the owner's.
func DetachOwn(records, bridge, owner string) (bool, error) {
	r, err := readRecord(records, bridge)
	if r == nil || err != nil || r.Owner != nil && *r.Owner != filepath.Clean(owner) {
		return false, err
	}
	return true, Detach(records, bridge)
}

// DetachGone detaches from bridges that are there no more. Who follows one does so itself.
func DetachGone(records string) (all error) {
	for _, bridge := range Attached(records) {
		v, err := Open(records, bridge)
		if err != nil {
			all = errors.Join(all, err)
		} else if _, err := netlink.LinkByName(bridge); isGone(err) && !v.Followed() {
			all = errors.Join(all, Detach(records, bridge))
		}
	}
	return all
}

func isGone(err error) bool {
	var gone netlink.LinkNotFoundError
	return errors.As(err, &gone)
}

// undo undoes what the record says; whoever calls it has the lock.
func (r *record) undo(records string) (err error) {
	remove(r.pins())
	if len(r.Settings) > 0 {
		if failed := tolerate(); failed != nil {
			err = fmt.Errorf("connections that went express: %w", failed)
		}
	}
	for file, was := range r.Settings {
		if found(records, r.Bridge, file) != "" { // that attachment needs it still
			continue
		}
		err = errors.Join(err, os.WriteFile(file, []byte(was), 0))
	}
	if err != nil {
		return err
	}
	_ = os.Remove(lockOf(records, r.Bridge))
	return os.Remove(recordOf(records, r.Bridge))
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
