package bridge

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
const Kind = "bridge"

// Leases are the numbers of ports that sandboxes have, one file each. They implement
// startup.NetPath.
type leases struct {
	dir  string
	size int

	mu   sync.Mutex
	held map[int]startup.Lease
	next int // the first number to look at: an address rests before another sandbox has it
}

func openLeases(dir string, size int) (*leases, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := &leases{dir: dir, size: size, held: map[int]startup.Lease{}}
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
func (l *leases) read(number int) (lease startup.Lease) {
	text, err := os.ReadFile(l.file(number))
	if err == nil {
		err = json.Unmarshal(text, &lease)
	}
	if err != nil {
		return startup.Lease{NIC: sandbox.NIC{Kind: Kind}, Number: number}
	}
	return lease
}

// write replaces a lease, whole or not at all.
func (l *leases) write(lease startup.Lease) error {
	text, err := json.Marshal(lease)
	if err != nil {
		return err
	}
	file := l.file(lease.Number)
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return errors.Join(err, os.Remove(file+".new"))
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	l.held[lease.Number] = lease
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
		if err := l.write(lease); err != nil {
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
	lease.PID, lease.StartTicks = rec.PID, rec.StartTicks
	return l.write(lease)
}

// giveBack frees the number once unplug has taken the port away, unless the lease is a former one.
func (l *leases) giveBack(lease startup.Lease, unplug func()) {
	l.mu.Lock()
	if !l.holds(lease) {
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	unplug() // takes a while, and others lease meanwhile; the number is still taken
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds(lease) {
		_ = os.Remove(l.file(lease.Number)) // what stays is returned by the next agent
		delete(l.held, lease.Number)
	}
}

// holds reports whether the lease is the number's present one.
func (l *leases) holds(lease startup.Lease) bool {
	now, taken := l.held[lease.Number]
	return taken && now.Generation == lease.Generation
}

func (l *leases) all() (left []startup.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range l.held {
		left = append(left, lease)
	}
	return left
}
