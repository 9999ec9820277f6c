package cni

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is the file in its run directory where the agent hears plugins.
const Socket = "cni.sock"

// The commands of a Request: CNI's, and Address, which gives what another plugin has allocated to
// an interface that is there.
const (
	Add     = "ADD"
	Address = "ADDRESS"
	Del     = "DEL"
	Check   = "CHECK"
	GC      = "GC"
	Status  = "STATUS"
)

// A Request is one line to the agent.
type Request struct {
	Command    string
	Attachment Attachment
	Netns      string       // path of the container's network namespace
	Device     string       // address of the VF; empty: any
	Driver     string       // vfio or netdev; empty: as the device is kept, or else netdev
	Settings   Settings     // of the VF
	MTU        int          // 0: as it is
	Ranges     []Range      // whose addresses the agent gives by the VF's number
	IPs        []IP         // that it is to have, or to be found with
	Routes     []Route      // with them
	Valid      []Attachment // GC: all others of the network end
}

// An Attachment is one interface of a container in a network. CNI allows no slash in its parts.
type Attachment struct{ Network, Container, Interface string }

// String returns the name under which the journal has it.
func (a Attachment) String() string {
	return a.Network + "/" + a.Container + "/" + a.Interface
}

// ParseAttachment reads what String returned.
func ParseAttachment(name string) (a Attachment, ok bool) {
	parts := strings.Split(name, "/")
	if len(parts) != 3 {
		return a, false
	}
	return Attachment{parts[0], parts[1], parts[2]}, true
}

// Settings has the configuration's settings of a VF; nil and empty: as the agent's pool has it.
type Settings struct {
	MAC     string
	VLAN    *int
	QoS     int
	Proto   string
	MinRate *int
	MaxRate *int
	Spoof   *bool
	Trust   *bool
	Link    string
}

// A Range gives VF number n the n-th address from First on.
type Range struct {
	Subnet  netip.Prefix `json:"subnet"`
	First   netip.Addr   `json:"first"`   // default: the third of the subnet
	Gateway netip.Addr   `json:"gateway"` // default: the second
}

// An IP is an address of an interface.
type IP struct {
	Address netip.Prefix
	Gateway netip.Addr
}

// A Route leads to a network; without GW by the gateway of its family. Its attributes are those of
// CNI 1.1; 0 and nil: the kernel's default.
type Route struct {
	Dst      netip.Prefix `json:"dst"`
	GW       netip.Addr   `json:"gw"`
	MTU      int          `json:"mtu"`
	AdvMSS   int          `json:"advmss"`
	Priority int          `json:"priority"`
	Table    *int         `json:"table"`
	Scope    *int         `json:"scope"`
}

// A Reply is the agent's one line.
type Reply struct {
	Code   uint   // of CNI's errors; 0: it was done
	Why    string // it was not
	Device string
	PF     string
	MAC    string
	MTU    int
	IPs    []IP
}

// most bounds a line, and patience how long the agent may take: a lease waits for no hardware.
const (
	most     = 1 << 20
	patience = time.Minute
)

// errAway is returned where no agent answers: a DEL then leaves a note for the next one.
var errAway = errors.New("no agent answers; start it with `fastiov agent` or `fastiov up`")

// ask sends one request to the agent of a run directory.
func ask(runDir string, req Request) (reply Reply, err error) {
	socket := filepath.Join(runDir, Socket)
	conn, err := net.DialTimeout("unix", socket, patience)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return reply, fmt.Errorf("%s: %w", socket, errAway)
	}
	if err != nil {
		return reply, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if err := json.NewEncoder(conn).Encode(req); err != nil {
		return reply, fmt.Errorf("asking the agent at %s: %w", socket, err)
	}
	if err := Decode(conn, &reply); err != nil {
		return reply, fmt.Errorf("the agent at %s gave no answer: %w; its log says why",
			socket, err)
	}
	return reply, nil
}

// notes is the folder of the DELs that no agent has heard of.
func notes(runDir string) string { return filepath.Join(runDir, "cni-ended") }

// leaveNote has the next agent end an attachment. Without a run directory there is no journal, and
// nothing to end.
func leaveNote(runDir string, a Attachment) error {
	if _, err := os.Stat(runDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.Mkdir(notes(runDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	dir, err := openNotes(runDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	// By another name until it is whole: an empty note would name nobody.
	if err := dir.WriteFile(noteOf(a)+unfinished, []byte(a.String()), 0o600); err != nil {
		return err
	}
	return dir.Rename(noteOf(a)+unfinished, noteOf(a))
}

// noteOf returns the name of an attachment's note, which says inside whose it is: a network's name
// may be longer than a file's.
func noteOf(a Attachment) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(a.String()))) }

// formerNoteOf returns the name that earlier plugins gave it, which is all that such a note says.
func formerNoteOf(a Attachment) string { return url.PathEscape(a.String()) }

const unfinished = ".new"

// openNotes opens the folder, unless somebody else could have put it or a note of it there: a note
// ends an attachment.
func openNotes(runDir string) (*os.Root, error) {
	dir, err := os.OpenRoot(notes(runDir))
	if err != nil {
		return nil, err
	}
	opened, err := dir.Stat(".")
	named, err2 := os.Lstat(notes(runDir))
	if err = errors.Join(err, err2); err == nil {
		owner := opened.Sys().(*syscall.Stat_t).Uid
		if !os.SameFile(opened, named) || owner != uint32(os.Geteuid()) ||
			opened.Mode().Perm()&0o022 != 0 {
			err = fmt.Errorf("%s is a link, or others may write to it: its notes do not count;"+
				" remove it", notes(runDir))
		}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// DropNote removes the note of an attachment, if there is one.
func DropNote(runDir string, a Attachment) error {
	dir, err := openNotes(runDir)
	if err == nil {
		defer dir.Close()
		if former := formerNoteOf(a); len(former) <= unix.NAME_MAX {
			if err := dir.Remove(former); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		err = dir.Remove(noteOf(a))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// TakeNotes calls end with each attachment that a plugin has left a note of, and removes the note.
func TakeNotes(runDir string, end func(Attachment)) error {
	dir, err := openNotes(runDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	left, err := fs.ReadDir(dir.FS(), ".")
	failed := []error{err}
	for _, note := range left {
		if strings.HasSuffix(note.Name(), unfinished) { // its DEL has failed
			failed = append(failed, dir.RemoveAll(note.Name()))
			continue
		}
		name, _ := url.PathUnescape(note.Name())
		a, ok := ParseAttachment(name)
		if !ok {
			text, _ := dir.ReadFile(note.Name())
			a, ok = ParseAttachment(string(text))
		}
		if ok {
			end(a)
		} else {
			failed = append(failed, fmt.Errorf("%s names no attachment",
				filepath.Join(notes(runDir), note.Name())))
		}
		failed = append(failed, dir.RemoveAll(note.Name()))
	}
	return errors.Join(failed...)
}
