// Package attach is the agent's side of the CNI plugin: it leases VFs to containers, and moves them
// into their network namespaces and back.
//
// An attachment is a lease of the pool by a pod, under the attachment's name; nothing else is
// written down. It is made in the order lease → plug → answer and ended in the order unplug →
// return, so a crash at any point leaves a lease that a DEL ends, or the end of its namespace.
package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/cni"
	"github.com/fastiov/fastiov/node-agent/failpoint"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// A Pool has the VFs.
type Pool interface {
	Lease(vf.Owner, vf.Want) (vf.Lease, error)
	Return(vf.Lease)
	Leases() []vf.Lease
}

// A Port is one end of an attachment: what a VF is to its container.
type Port struct {
	Device string // address of the VF
	Driver vf.Driver
	Netns  string // of the container
	Name   string // of the interface there
	MAC    string
	MTU    int // 0: as it is
	IPs    []cni.IP
	Routes []cni.Route
}

// Wires move interfaces. Tests put an emulation here.
type Wires interface {
	// Plug puts the port's interface into its namespace, and returns its MTU. A VF by vfio has a
	// dummy interface there, for runtimes that look for one. Where it fails, the interface may be
	// there all the same, without its other names; Unplug takes it out.
	Plug(Port) (mtu int, err error)
	// Address gives an interface that was plugged the port's addresses and routes.
	Address(Port) error
	// Announce tells the neighbours of the port's addresses, once it has a link.
	Announce(context.Context, Port) error
	// Unplug takes it out again, under a name that is nobody's. It does nothing where the namespace
	// or the interface is gone.
	Unplug(Port) error
	// Check returns an error that says what the interface lacks.
	Check(Port) error
}

// A Server answers plugins.
type Server struct {
	Pool   Pool
	Wires  Wires
	Ready  func() error // why the node takes nobody; nil: it does
	RunDir string
	Log    *slog.Logger

	mu        sync.Mutex
	locks     map[string]*lock  // of attachments
	announced map[string]func() // by VF: ends its announcement
	calls     sync.WaitGroup
}

// announces has the neighbours hear of a container's VF as soon as its link is there. The container
// does not wait for that; by vfio its guest does it.
func (s *Server) announces(port Port) {
	if port.Driver != vf.Netdev || len(port.IPs) == 0 {
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	s.mu.Lock()
	if s.announced == nil {
		s.announced = map[string]func(){}
	}
	s.announced[port.Device] = func() {
		cancel(errUnplugged)
		<-ended
	}
	s.mu.Unlock()
	go func() {
		defer close(ended)
		if err := s.Wires.Announce(ctx, port); err != nil &&
			!errors.Is(err, errUnplugged) && !errors.Is(err, fs.ErrNotExist) {
			s.Log.Warn("the neighbours of a container were not told of its VF", "vf", port.Device,
				"netns", port.Netns, "error", err)
		}
	}()
}

// hush ends the announcement of a VF, so that no later holder's addresses are said to be the
// former's, or those of all.
func (s *Server) hush(device string) {
	var ends []func()
	s.mu.Lock()
	for of, end := range s.announced {
		if of == device || device == "" {
			ends = append(ends, end)
			delete(s.announced, of)
		}
	}
	s.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// A lock is held by one call at a time, and kept as long as calls want it.
type lock struct {
	sync.Mutex
	wanted int
}

// one returns when no other call is about that attachment, and keeps others out until done.
func (s *Server) one(a cni.Attachment) (done func()) {
	name := a.String()
	s.mu.Lock()
	if s.locks == nil {
		s.locks = map[string]*lock{}
	}
	l := s.locks[name]
	if l == nil {
		l = &lock{}
		s.locks[name] = l
	}
	l.wanted++
	s.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.wanted--; l.wanted == 0 {
			delete(s.locks, name)
		}
	}
}

// patience bounds how long a plugin may take to ask, and to take its answer; pause is how long the
// server waits where it could not hear one.
const (
	patience = 10 * time.Second
	pause    = 50 * time.Millisecond
)

// Serve ends what plugins have left notes of and then answers them, until the listener is closed
// and the last call has ended.
func (s *Server) Serve(listener net.Listener) error {
	err := cni.TakeNotes(s.RunDir, func(a cni.Attachment) { s.end(a) })
	if err != nil {
		s.Log.Warn("some attachments that ended without an agent keep their VFs", "error", err)
	}
	defer s.hush("")
	defer s.calls.Wait()
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil { // as when all descriptors are in use
			s.Log.Warn("a CNI plugin was not heard", "error", err)
			time.Sleep(pause)
			continue
		}
		s.calls.Go(func() { s.answer(conn) })
	}
}

func (s *Server) answer(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	var req cni.Request
	if err := cni.Decode(conn, &req); err != nil {
		s.Log.Warn("a CNI plugin asked nothing that can be read", "error", err)
		return
	}
	if req.Command != cni.GC && req.Command != cni.Status {
		// Until the plugin has its answer: what nobody has learned of is ended by its name.
		defer s.one(req.Attachment)()
		if hungUp(conn) { // a runtime that killed it has asked again: see to no later container
			s.Log.Warn("a CNI plugin has ended before its turn; nothing is done for it",
				"command", req.Command, "attachment", req.Attachment)
			return
		}
	}
	begin := time.Now()
	reply, err := s.Do(req)
	if err != nil {
		reply = cni.Reply{Code: codeOf(err), Why: err.Error()}
	}
	s.Log.Info("CNI", "command", req.Command, "attachment", req.Attachment, "vf", reply.Device,
		"took", time.Since(begin).Round(time.Microsecond), "error", reply.Why)
	_ = conn.SetDeadline(time.Now().Add(patience))
	if err := json.NewEncoder(conn).Encode(reply); err != nil && req.Command == cni.Add &&
		reply.Code == 0 { // nobody has learned of the attachment
		s.end(req.Attachment)
	}
}

// hungUp reports whether the other end of a Unix socket is closed.
func hungUp(conn net.Conn) (is bool) {
	socket, has := conn.(syscall.Conn)
	if !has {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		polled := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(polled, 0)
		is = err == nil && n > 0 && polled[0].Revents&unix.POLLHUP != 0
	})
	return is || err != nil
}

// A refusal is an error with one of CNI's codes.
type refusal struct {
	code uint
	error
}

func refuse(code uint, format string, args ...any) error {
	return refusal{code, fmt.Errorf(format, args...)}
}

func codeOf(err error) uint {
	var r refusal
	switch {
	case errors.As(err, &r):
		return r.code
	case errors.Is(err, vf.ErrEmpty), errors.Is(err, vf.ErrLinkDown):
		return types.ErrTryAgainLater
	}
	return types.ErrInternal
}

// Do carries out one request. No other call is about its attachment meanwhile.
func (s *Server) Do(req cni.Request) (cni.Reply, error) {
	switch req.Command {
	case cni.Status:
		return cni.Reply{}, s.Ready()
	case cni.GC:
		s.collect(req)
		return cni.Reply{}, nil
	}
	if parsed, ok := cni.ParseAttachment(req.Attachment.String()); !ok ||
		parsed != req.Attachment || req.Attachment.Network == "" || parsed.Container == "" {
		return cni.Reply{}, refuse(types.ErrInvalidEnvironmentVariables,
			"%q names no attachment", req.Attachment)
	}
	switch req.Command {
	case cni.Add:
		return s.add(req)
	case cni.Address:
		return cni.Reply{}, s.address(req)
	case cni.Check:
		return cni.Reply{}, s.check(req)
	case cni.Del:
		s.end(req.Attachment)
		return cni.Reply{}, cni.DropNote(s.RunDir, req.Attachment)
	}
	return cni.Reply{}, refuse(types.ErrInvalidEnvironmentVariables, "no command %q; "+
		"this agent is of another version than the plugin, or no plugin asks", req.Command)
}

// add leases a VF to an attachment and plugs it in.
func (s *Server) add(req cni.Request) (reply cni.Reply, err error) {
	if err := s.Ready(); err != nil {
		return reply, refuse(types.ErrTryAgainLater, "%w", err)
	}
	if has := s.leases(req.Attachment); len(has) > 0 {
		return reply, refuse(types.ErrInternal,
			"%s has VF %s already; DEL it first", req.Attachment, has[0].BDF)
	}
	if err := cni.DropNote(s.RunDir, req.Attachment); err != nil { // it is of a former holder
		return reply, err
	}
	owner := vf.PodIn(req.Attachment.String(), req.Netns)
	if !filepath.IsAbs(req.Netns) || owner.NetnsInode == 0 && owner.Dead() {
		return reply, refuse(types.ErrInvalidNetNS,
			"there is no network namespace %q where the agent looks", req.Netns)
	}
	home, _ := os.Stat(ownNamespace)
	if theirs, _ := os.Stat(req.Netns); os.SameFile(home, theirs) {
		return reply, refuse(types.ErrInvalidNetNS,
			"%q is the agent's own network namespace; give the container one", req.Netns)
	}
	want := vf.Want{BDF: req.Device, Driver: vf.Driver(req.Driver), Kept: true,
		Set: func(to *vf.Settings) { set(to, req.Settings) }}
	if want.BDF == "" && want.Driver == "" {
		want.Driver = vf.Netdev
	}
	lease, err := s.Pool.Lease(owner, want)
	if err != nil {
		return reply, err
	}
	failpoint.Hit(failpoint.CNILeased)
	reply = cni.Reply{Device: lease.BDF, PF: lease.PF, MAC: lease.MAC}
	if reply.IPs, err = addresses(req.Ranges, lease.Ordinal); err == nil {
		reply.MTU, err = s.plug(req, lease, reply.IPs)
	}
	if err != nil {
		s.release(lease)
		return cni.Reply{}, fmt.Errorf("VF %s: %w", lease.BDF, err)
	}
	failpoint.Hit(failpoint.CNIPlugged)
	return reply, nil
}

func (s *Server) plug(req cni.Request, lease vf.Lease, ips []cni.IP) (mtu int, err error) {
	if lease.MAC == "" {
		return 0, fmt.Errorf("its card %s has no network", lease.PF)
	}
	port := portOf(lease, req)
	port.IPs = ips
	s.hush(port.Device)
	if mtu, err = s.Wires.Plug(port); err == nil {
		s.announces(port)
	}
	return mtu, err
}

// set changes the pool's settings of a VF to those that a configuration has.
func set(to *vf.Settings, from cni.Settings) {
	take := func(to, from *int) {
		if from != nil {
			*to = *from
		}
	}
	flip := func(to, from *bool) {
		if from != nil {
			*to = *from
		}
	}
	take(&to.VLAN, from.VLAN)
	take(&to.MinRate, from.MinRate)
	take(&to.MaxRate, from.MaxRate)
	flip(&to.SpoofCheck, from.Spoof)
	flip(&to.Trust, from.Trust)
	to.QoS, to.Proto, to.Link = from.QoS, from.Proto, from.Link
	if from.MAC != "" {
		to.MAC = from.MAC
	}
}

// addresses returns those that a VF has by its number, one of each range.
func addresses(ranges []cni.Range, number int) (ips []cni.IP, err error) {
	for _, r := range ranges {
		network := startup.Network{Subnet: r.Subnet, First: r.First}
		address, err := network.Address(number)
		if err != nil || isBroadcast(address) {
			return nil, fmt.Errorf("VF number %d has no address in %s from %s on; "+
				"make the range larger", number, r.Subnet, r.First)
		}
		if address.Addr() == r.Gateway {
			return nil, fmt.Errorf("VF number %d would have the gateway's address %s; "+
				"begin the range behind it", number, r.Gateway)
		}
		ips = append(ips, cni.IP{Address: address, Gateway: r.Gateway})
	}
	return ips, nil
}

// isBroadcast reports whether the address is one by which all of its network are reached. IPv6 has
// none, and no network of one or two addresses.
func isBroadcast(a netip.Prefix) bool {
	const least = 30 // bits of a prefix whose network has one
	return a.Addr().Is4() && a.Bits() <= least && !a.Masked().Contains(a.Addr().Next())
}

func portOf(lease vf.Lease, req cni.Request) Port {
	return Port{
		Device: lease.BDF, Driver: lease.Driver, Netns: lease.Owner.Netns,
		Name: req.Attachment.Interface, MAC: lease.MAC, MTU: req.MTU,
		IPs: req.IPs, Routes: req.Routes,
	}
}

// held returns the one lease of an attachment.
func (s *Server) held(a cni.Attachment) (vf.Lease, error) {
	if leases := s.leases(a); len(leases) > 0 {
		return leases[0], nil
	}
	return vf.Lease{}, refuse(types.ErrUnknownContainer, "%s has no VF", a)
}

func (s *Server) leases(a cni.Attachment) []vf.Lease {
	name := a.String()
	return slices.DeleteFunc(s.Pool.Leases(), func(l vf.Lease) bool {
		return l.Owner.Kind != vf.Pod || l.Owner.Name != name
	})
}

func (s *Server) address(req cni.Request) error {
	lease, err := s.held(req.Attachment)
	if err != nil {
		return err
	}
	port := portOf(lease, req)
	if err := s.Wires.Address(port); err != nil {
		return err
	}
	s.announces(port)
	return nil
}

func (s *Server) check(req cni.Request) error {
	lease, err := s.held(req.Attachment)
	if err != nil {
		return err
	}
	if lease.Gone {
		return fmt.Errorf("%s had VF %s, which its card has no longer", req.Attachment, lease.BDF)
	}
	if req.Device != "" && req.Device != lease.BDF {
		return fmt.Errorf("%s has VF %s, and not %s", req.Attachment, lease.BDF, req.Device)
	}
	port := portOf(lease, req)
	port.MAC = req.Settings.MAC
	return s.Wires.Check(port)
}

// end gives back what an attachment has. It cannot fail, and may run twice.
func (s *Server) end(a cni.Attachment) {
	for _, lease := range s.leases(a) {
		s.release(lease)
	}
}

// release returns a VF that it has taken out of its container. One that it could not take out is
// returned all the same: the pool touches no VF whose interface is in another namespace.
func (s *Server) release(lease vf.Lease) {
	a, _ := cni.ParseAttachment(lease.Owner.Name)
	s.hush(lease.BDF)
	err := s.Wires.Unplug(portOf(lease, cni.Request{Attachment: a}))
	if err != nil {
		s.Log.Warn("a VF's interface could not be taken out of its container", "vf", lease.BDF,
			"holder", lease.Owner, "error", err)
	}
	failpoint.Hit(failpoint.CNIUnplugged)
	s.Pool.Return(lease)
}

// collect ends all attachments of a network that are not valid any more.
func (s *Server) collect(req cni.Request) {
	for _, lease := range s.Pool.Leases() {
		a, ok := cni.ParseAttachment(lease.Owner.Name)
		if lease.Owner.Kind != vf.Pod || !ok || a.Network != req.Attachment.Network ||
			slices.Contains(req.Valid, a) {
			continue
		}
		func() {
			defer s.one(a)()
			for _, now := range s.leases(a) {
				if now.BDF == lease.BDF && now.Generation == lease.Generation { // no later one
					s.release(now)
				}
			}
		}()
	}
}
