// Package netpath is an example of a path to the network. Each sandbox has an address of this
// machine's loopback device to itself. A lease is a file, so a later agent finds what a former one
// left.
package netpath

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// Kind is the path's name in metrics, records and the node API.
const Kind = "loopback"

// A Path has Size addresses, from the node's first one on. It implements startup.NetPath.
type Path struct {
	Dir  string // of the leases
	Size int

	mu     sync.Mutex
	faults map[int]string // why this agent does not lease a number again
}

// Open returns a path whose leases are in dir.
func Open(dir string, size int) (*Path, error) {
	return &Path{Dir: dir, Size: size, faults: map[int]string{}}, os.MkdirAll(dir, 0o700)
}

func (p *Path) file(number int) string { return filepath.Join(p.Dir, strconv.Itoa(number)) }

// Lease implements startup.NetPath.
func (p *Path) Lease(id string) (startup.Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for number := range p.Size {
		_, err := os.Stat(p.file(number))
		if p.faults[number] != "" || !errors.Is(err, os.ErrNotExist) {
			continue
		}
		l := startup.Lease{
			NIC: sandbox.NIC{Kind: Kind}, Number: number, ID: id,
			Generation: uint64(time.Now().UnixNano()),
		}
		return l, p.write(l)
	}
	err := fmt.Errorf("none of the %d addresses is free, and %d had a fault", p.Size, len(p.faults))
	return startup.Lease{}, &startup.Lacking{Lack: startup.LackNIC, Err: err}
}

// Own implements startup.NetPath.
func (p *Path) Own(l startup.Lease, rec sandbox.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.holds(l) {
		return fmt.Errorf("sandbox %s has no lease of address %d any more", l.ID, l.Number)
	}
	l.PID, l.StartTicks = rec.PID, rec.StartTicks
	return p.write(l)
}

// Fault implements startup.NetPath.
func (p *Path) Fault(l startup.Lease, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[l.Number] = why
}

// Return implements startup.NetPath.
func (p *Path) Return(l startup.Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds(l) {
		_ = os.Remove(p.file(l.Number)) // what stays is returned by the next agent
	}
}

// Left implements startup.NetPath.
func (p *Path) Left() (left []startup.Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for number := range p.Size {
		if _, err := os.Stat(p.file(number)); err == nil {
			l, _ := p.read(number) // of one that cannot be read nobody knows the sandbox
			left = append(left, l)
		}
	}
	return left
}

// holds reports whether the lease is the number's present one. Both have the generation 0 where the
// present one cannot be read.
func (p *Path) holds(l startup.Lease) bool {
	now, _ := p.read(l.Number)
	return now.Generation == l.Generation
}

func (p *Path) read(number int) (l startup.Lease, err error) {
	text, err := os.ReadFile(p.file(number))
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		return startup.Lease{NIC: sandbox.NIC{Kind: Kind}, Number: number}, err
	}
	return l, nil
}

// write replaces the number's lease, whole or not at all.
func (p *Path) write(l startup.Lease) error {
	text, err := json.Marshal(l)
	if err == nil {
		err = os.WriteFile(p.file(l.Number)+".new", text, 0o600)
	}
	if err != nil {
		return err
	}
	return os.Rename(p.file(l.Number)+".new", p.file(l.Number))
}
