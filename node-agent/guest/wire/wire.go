// Package wire holds the messages between the agent and the guest's process 1, over vsock.
//
// The guest dials the host (CID 2, ControlPort) and both sides write JSON objects, one a line, each
// with exactly one field set, or with a gate and its event: the guest Up, the host Down. The guest
// is hostile: a line has a bound (MaxLine), the messages hold no lists, and a line that does not
// decode ends the connection. A reader ignores fields that it does not know, so that a guest image
// may be older or newer than the agent.
//
// The guest's times are nanoseconds of its CLOCK_BOOTTIME; with ping and pong the host maps them to
// its own clock. After a lost connection (the agent restarted) the guest dials again and its hello
// says whether it has been ready. A ready guest is not configured again.
//
// The package is part of the guest's process 1, so it stays small: no net, no reflection beyond
// encoding/json.
package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path"
	"strings"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/limits"
	"github.com/fastiov/fastiov/node-agent/guest/door"
)

const (
	HostCID = 2
	// The vsock port of this protocol on the host. Below 1024 only CAP_NET_BIND_SERVICE binds.
	ControlPort = 1023
	RuntimePort = 8080 // vsock, in the guest: package door; TCP, on its 127.0.0.1: the runtime

	MaxLine = 128 << 10 // of one encoded message, newline included
	// Bounds the text of one Log before encoding; a longer line is sent in pieces. Six times this,
	// the worst of JSON, fits MaxLine.
	MaxText = 16 << 10

	// The value of the kernel's parameter root if the root image is a region of memory, not a disk.
	Region = "/dev/pmem0"
)

// ErrTooLong says that a message is longer than MaxLine.
var ErrTooLong = fmt.Errorf("a message is longer than %d bytes", MaxLine)

// ErrNIC is why a guest ended whose NIC did not come up.
var ErrNIC = errors.New("its NIC did not come up")

// Up is a message from the guest.
type Up struct {
	Hello *Hello `json:"hello,omitempty"` // first, once
	Event *Event `json:"event,omitempty"`
	Log   *Log   `json:"log,omitempty"`
	Gate  *Gate  `json:"gate,omitempty"`  // once, when the NIC is up, if it was gated; with Event
	Ready *Ready `json:"ready,omitempty"` // the runtime accepts on RuntimePort; its NIC may be used
	Exit  *Exit  `json:"exit,omitempty"`  // last: the guest powers off now
	Pong  *Pong  `json:"pong,omitempty"`
	Woken *Woken `json:"woken,omitempty"`
}

// Down is a message from the host.
type Down struct {
	// Sent first, once, unless the guest's hello says that it is ready.
	Config *Config `json:"config,omitempty"`
	Ping   *Ping   `json:"ping,omitempty"`
	Wake   *Wake   `json:"wake,omitempty"`
}

// Hello says what the guest is. The connection's CID says that it is the guest it claims to be.
type Hello struct {
	Boot  int64 `json:"boot"`  // when init started
	Real  int64 `json:"real"`  // CLOCK_REALTIME then, Unix nanoseconds, from the emulated RTC
	Ready bool  `json:"ready"` // Ready was sent on an earlier connection
	Ports bool  `json:"ports"` // its door leads to each port; else to the runtime's alone
	Gate  bool  `json:"gate"`  // it can have a gate: its kernel has tun devices
	Shut  bool  `json:"shut"`  // its NIC is coming up behind its gate
	Files bool  `json:"files"` // it gives its program the files of mounts
	Rooms bool  `json:"rooms"` // and folders with room
}

// An Event is a span of time: a stage of node-agent/api/timeline or, with Step set, a part of one.
type Event struct {
	Stage string `json:"stage"`
	Step  string `json:"step,omitempty"`
	Begin int64  `json:"begin"`
	End   int64  `json:"end"`
}

// A Log is one line, without its newline, that the runtime wrote; or a piece of a longer one.
type Log struct {
	Stream string `json:"stream"` // stdout or stderr
	Text   string `json:"text"`
}

// A LogLine is a Log as the agent keeps it.
type LogLine struct {
	Time   time.Time // when the agent heard it
	Stream string    // stdout or stderr
	Text   string

	Sidecar string // that wrote it; empty: the program that serves
}

// Gate tells how many packets of programs were held until the NIC was up, and since when.
type Gate struct {
	Held    int   `json:"held"`
	Dropped int   `json:"dropped"` // for want of room, or because they could not be sent again
	First   int64 `json:"first"`   // when the first packet came; 0: none did
	Open    int64 `json:"open"`    // when those held had been sent again
}

// Ready says that the runtime accepts.
type Ready struct {
	// For how long, while the NIC came up and no packet was held, nothing ran in the guest.
	Idle int64 `json:"idle,omitempty"`
}

// Exit is why the guest ends: the runtime ended by itself, or what failed.
type Exit struct {
	Reason string `json:"reason"`
	NIC    bool   `json:"nic,omitempty"` // the NIC did not come up while the runtime ran
}

type Ping struct {
	ID uint64 `json:"id"`
}

type Pong struct {
	ID   uint64 `json:"id"`
	Boot int64  `json:"boot"` // when the ping was heard
}

// Wake tells a guest that was stopped what time it is. The guest did not notice the stop. So
// whatever its clocks counted on meanwhile, it sets its time of day anew; Woken says that it has.
type Wake struct {
	Time int64 `json:"time"` // Unix nanoseconds at sending
}

type Woken struct{}

// Config is all that the guest is told.
type Config struct {
	Time     int64       `json:"time"`    // Unix nanoseconds at sending
	Entropy  []byte      `json:"entropy"` // credited to the kernel's random pool
	Secret   door.Secret `json:"secret"`  // a caller that knows it may speak to the runtime
	Hostname string      `json:"hostname"`
	NIC      *NIC        `json:"vf,omitempty"` // its key is older than its name
	// The runtime starts before the NIC is up, and what programs send is held until then. Else the
	// runtime starts when the NIC is up.
	Gate bool `json:"gate,omitempty"`
	Program
}

// A Program is the runtime, as its image wants it started.
type Program struct {
	Command []string          `json:"command"`
	Args    int               `json:"args,omitempty"` // the last words of Command, its arguments
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"dir,omitempty"` // working directory, default /
	UID     uint32            `json:"uid,omitempty"` // 0 is the guest's root
	GID     uint32            `json:"gid,omitempty"`

	Port     uint16 `json:"port,omitempty"`     // TCP, where it listens; 0: RuntimePort
	Mark     string `json:"mark,omitempty"`     // may end a line in place of a newline
	Protocol string `json:"protocol,omitempty"` // of the runtime there, see node-agent/runtime
	Probe    string `json:"probe,omitempty"`    // of HTTP: whether it is ready

	ProbeCommand []string `json:"probeCommand,omitempty"` // that tells it, in the place of Probe

	Mounts []Mount `json:"mounts,omitempty"`
}

// A Mount is files of which the program can only read, over what the image has at Path; or with
// Room an empty folder there, in the sandbox's memory, that it may fill with so many bytes.
type Mount struct {
	Path  string `json:"path"`
	Files []File `json:"files,omitempty"`
	Room  uint64 `json:"room,omitempty"`
	// The name of a folder with room that a sandbox's programs share; empty: it is the program's.
	Shared string `json:"shared,omitempty"`
}

// A File is below its mount or, without a name, that itself.
type File struct {
	Name string      `json:"name,omitempty"`
	Data []byte      `json:"data,omitempty"`
	Mode fs.FileMode `json:"mode"`
}

// Alone reports whether a mount is a file.
func (m Mount) Alone() bool { return len(m.Files) == 1 && m.Files[0].Name == "" }

// Tmpfs returns the options of the tmpfs that a mount with room is.
func (m Mount) Tmpfs() string { return fmt.Sprintf("mode=1777,size=%d", m.Room) }

// CheckMounts returns what is wrong with the mounts of a program.
func CheckMounts(all []Mount) (err error) {
	if len(all) > limits.Mounts {
		return fmt.Errorf("%d mounts; at most %d", len(all), limits.Mounts)
	}
	whole := limits.Each * len(all)
	for _, m := range all {
		if err := m.check(); err != nil {
			return err
		}
		for _, f := range m.Files {
			whole += limits.OfFile(f.Name, len(f.Data))
		}
	}
	if whole > limits.Files {
		return fmt.Errorf("the files in mounts take %d bytes; at most %d", whole, limits.Files)
	}
	return nil
}

// taken says what a sandbox itself has at a path, or above it; empty: nothing.
func taken(at string) string {
	for _, own := range []string{"/dev", "/proc", "/sys", "/run/fastiov"} {
		if at == own || strings.HasPrefix(at, own+"/") {
			return own
		}
	}
	switch at {
	case "/run", "/etc": // what is in there would be hidden
		return at
	}
	return ""
}

func (m Mount) check() error {
	if !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path || m.Path == "/" ||
		strings.ContainsRune(m.Path, 0) || limits.TooLong(m.Path) {
		return fmt.Errorf("a mount at %.80q: want the clean, absolute path of a folder or file",
			m.Path)
	}
	if m.Room > 0 && len(m.Files) > 0 {
		return fmt.Errorf("a mount at %.80q with room and with files: want one of both", m.Path)
	}
	if m.Shared != "" && (m.Room == 0 || strings.ContainsAny(m.Shared, "./\x00")) {
		return fmt.Errorf("a mount at %.80q that is shared as %.80q: want a folder with room, and "+
			"no dots and slashes in its name", m.Path, m.Shared)
	}
	if own := taken(m.Path); own != "" {
		return fmt.Errorf("a mount at %.80q: the sandbox has its own files in %s", m.Path, own)
	}
	for _, f := range m.Files {
		if !m.Alone() && (!fs.ValidPath(f.Name) || f.Name == ".") ||
			strings.ContainsRune(f.Name, 0) || limits.TooLong(f.Name) {
			return fmt.Errorf("a file %.80q in the mount at %.80q: want a name below that, of at "+
				"most %d folders", f.Name, m.Path, limits.Parts-1)
		}
		if f.Mode&^fs.ModePerm != 0 {
			return fmt.Errorf("mode %o of %.80q in the mount at %.80q: want at most 777", f.Mode,
				f.Name, m.Path)
		}
	}
	return nil
}

// Listens is the TCP port on which the program listens.
func (p Program) Listens() int {
	if p.Port == 0 {
		return RuntimePort
	}
	return int(p.Port)
}

// NIC is the network interface that the guest must find, by its MAC, and bring up.
type NIC struct {
	MAC     string       `json:"mac"`
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
	DNS     netip.Addr   `json:"dns,omitzero"`
}

// Write writes one message, an Up or a Down, with a single call of w.Write.
func Write(w io.Writer, message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(line)+1 > MaxLine {
		return ErrTooLong
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// A Reader reads messages. It never holds more than MaxLine bytes.
type Reader struct{ lines *bufio.Scanner }

// NewReader reads messages from r.
func NewReader(r io.Reader) *Reader {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, MaxLine)
	lines.Split(wholeLines)
	return &Reader{lines}
}

// Next decodes the next message into the Up or Down that message points to. It returns io.EOF at an
// end between two messages.
func (r *Reader) Next(message any) error {
	if !r.lines.Scan() {
		switch err := r.lines.Err(); {
		case err == nil:
			return io.EOF
		case errors.Is(err, bufio.ErrTooLong):
			return ErrTooLong
		default:
			return err
		}
	}
	if err := json.Unmarshal(r.lines.Bytes(), message); err != nil {
		return fmt.Errorf("a message does not decode: %w", err)
	}
	return nil
}

// wholeLines splits at newlines; text after the last one is an error and not a line.
func wholeLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}
