package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// Kind is the path's name in metrics, records and the node API.
const Kind = "bridge"

// Leases are the numbers of ports that sandboxes have, one file each. They implement
// startup.NetPath.
type leases struct {
	dir  string
	size int

	mu   sync.Mutex
	held map[int]held
	next int // the first number to look at: an address rests before another sandbox has it
}

// A held port is a lease, and what of its sandbox others may reach.
type held struct {
	startup.Lease
	Published []startup.Publication `json:",omitempty"`
	leaving   bool                  // it is about to be given back: nobody is led there any more
}

func openLeases(dir string, size int) (*leases, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := &leases{dir: dir, size: size, held: map[int]held{}}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		number, err := strconv.Atoi(file.Name())
		if err != nil { // an agent died while it wrote
			_ = os.Remove(filepath.Join(dir, file.Name()))
			continue
		}
		l.held[number] = l.read(number)
	}
	return l, nil
}

func (l *leases) file(number int) string { return filepath.Join(l.dir, strconv.Itoa(number)) }

// read returns the lease of a number. Of one that cannot be read nobody knows the sandbox.
func (l *leases) read(number int) (h held) {
	text, err := os.ReadFile(l.file(number))
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err != nil {
		return held{Lease: startup.Lease{NIC: sandbox.NIC{Kind: Kind}, Number: number}}
	}
	return h
}

// write replaces a lease, whole or not at all.
func (l *leases) write(h held) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	file := l.file(h.Number)
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return errors.Join(err, os.Remove(file+".new"))
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	l.held[h.Number] = h
	return nil
}

// lease gives the sandbox id a number.
func (l *leases) lease(id string, mac func(number int) string) (startup.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.size {
		number := (l.next + i) % l.size
		if _, taken := l.held[number]; taken {
			continue
		}
		lease := startup.Lease{
			NIC:    sandbox.NIC{Kind: Kind, MAC: mac(number)},
			Number: number, ID: id, Generation: uint64(time.Now().UnixNano()),
		}
		if err := l.write(held{Lease: lease}); err != nil {
			return startup.Lease{}, &startup.Lacking{Lack: startup.LackOther, Err: err}
		}
		l.next = number + 1
		return lease, nil
	}
	err := fmt.Errorf("all %d ports of the bridge are in use", l.size)
	return startup.Lease{}, &startup.Lacking{Lack: startup.LackNIC, Err: err}
}

func (l *leases) own(lease startup.Lease, rec sandbox.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.holds(lease) {
		return fmt.Errorf("sandbox %s has no lease of port %d any more", lease.ID, lease.Number)
	}
	h := l.held[lease.Number]
	h.PID, h.StartTicks = rec.PID, rec.StartTicks
	return l.write(h)
}

// publish notes what of a sandbox others may reach.
func (l *leases) publish(lease startup.Lease, p startup.Publication) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[lease.Number]
	if !l.holds(lease) || h.leaving {
		return fmt.Errorf("sandbox %s has no lease of port %d any more", lease.ID, lease.Number)
	}
	h.Published = append(slices.Clip(h.Published), p)
	return l.write(h)
}

// unpublish takes back a publication.
func (l *leases) unpublish(lease startup.Lease, p startup.Publication) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.holds(lease) {
		return nil
	}
	h := l.held[lease.Number]
	h.Published = slices.DeleteFunc(slices.Clone(h.Published),
		func(other startup.Publication) bool { return other == p })
	l.held[lease.Number] = h
	return l.write(h)
}

// leave has nobody be led to a sandbox any more, and returns what was published of it. The number
// is taken until giveBack.
func (l *leases) leave(lease startup.Lease) []startup.Publication {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.holds(lease) {
		return nil
	}
	h := l.held[lease.Number]
	h.leaving = true
	l.held[lease.Number] = h
	return h.Published
}

// published returns what others may reach, by the number of the sandbox's port.
func (l *leases) published() map[int][]startup.Publication {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[int][]startup.Publication{}
	for number, h := range l.held {
		if len(h.Published) > 0 && !h.leaving {
			all[number] = h.Published
		}
	}
	return all
}

// giveBack frees the number once unplug has taken the port away, unless the lease is a former one,
// and returns what was published of it.
func (l *leases) giveBack(lease startup.Lease, unplug func()) []startup.Publication {
	l.mu.Lock()
	if !l.holds(lease) {
		l.mu.Unlock()
		return nil
	}
	l.mu.Unlock()
	unplug() // takes a while, and others lease meanwhile; the number is still taken
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.holds(lease) {
		return nil
	}
	_ = os.Remove(l.file(lease.Number)) // what stays is returned by the next agent
	was := l.held[lease.Number].Published
	delete(l.held, lease.Number)
	return was
}

// holds reports whether the lease is the number's present one.
func (l *leases) holds(lease startup.Lease) bool {
	now, taken := l.held[lease.Number]
	return taken && now.Generation == lease.Generation
}

func (l *leases) all() (left []startup.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.held {
		left = append(left, h.Lease)
	}
	return left
}
