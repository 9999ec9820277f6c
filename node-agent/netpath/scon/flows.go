package scon

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Paths lists why packets took the path that they took, in the order of the programs' own list:
// express, or what made them regular.
var Paths = []string{"express", "no-entry", "other", "control", "malformed", "last-hop", "frame",
	"size", "sample", "rules", "routes", "connection", "window"}

// A Flow is one direction of a connection, as its packets come in.
type Flow struct {
	Protocol string // tcp or udp
	From, To netip.AddrPort
}

func (f Flow) String() string { return fmt.Sprintf("%s %s %s", f.Protocol, f.From, f.To) }

// ParseFlow reads what String writes: a protocol, and two addresses with ports.
func ParseFlow(protocol, from, to string) (f Flow, err error) {
	if f.Protocol = strings.ToLower(protocol); f.Protocol != "tcp" && f.Protocol != "udp" {
		return Flow{}, fmt.Errorf("protocol %q: want tcp or udp", protocol)
	}
	for text, end := range map[string]*netip.AddrPort{from: &f.From, to: &f.To} {
		if *end, err = netip.ParseAddrPort(text); err != nil || !end.Addr().Is4() {
			return Flow{}, fmt.Errorf("%q: want ADDRESS:PORT of IPv4", text)
		}
	}
	return f, nil
}

// key returns the flow as the programs have it.
func (f Flow) key(device uint32) programFlow {
	k := programFlow{From: wireAddr(f.From.Addr()), To: wireAddr(f.To.Addr()),
		FromPort: wirePort(f.From.Port()), ToPort: wirePort(f.To.Port()), Device: device,
		Protocol: unix.IPPROTO_UDP}
	if f.Protocol == "tcp" {
		k.Protocol = unix.IPPROTO_TCP
	}
	return k
}

func flowOf(k programFlow) Flow {
	f := Flow{Protocol: "udp", From: netip.AddrPortFrom(addr(k.From), port(k.FromPort)),
		To: netip.AddrPortFrom(addr(k.To), port(k.ToPort))}
	if k.Protocol == unix.IPPROTO_TCP {
		f.Protocol = "tcp"
	}
	return f
}

// The order of the wire, in which the programs have addresses and ports.
func addr(wire uint32) netip.Addr { return netip.AddrFrom4(*(*[4]byte)(unsafe.Pointer(&wire))) }
func port(wire uint16) uint16 {
	return binary.BigEndian.Uint16((*(*[2]byte)(unsafe.Pointer(&wire)))[:])
}
func wireAddr(a netip.Addr) uint32 { return binary.NativeEndian.Uint32(a.AsSlice()) }
func wirePort(number uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, number))
}

// An Entry is a Conentry: what becomes of the packets of a flow.
type Entry struct {
	Flow
	By             int // the device that they come in by
	BecomeFrom     netip.AddrPort
	BecomeTo       netip.AddrPort
	Out            int    // the device that they go out by
	Packets, Bytes uint64 // that went express
	// Why the next packet will take the path that it will take: one of Paths.
	Next string
}

// A View reads an attachment by its pins, whoever has attached it.
type View struct {
	record
	dir, file string
}

// Attached lists the bridges that have an attachment.
func Attached(records string) (bridges []string) {
	files, _ := filepath.Glob(filepath.Join(records, "*.json"))
	for _, file := range files {
		bridges = append(bridges, strings.TrimSuffix(filepath.Base(file), ".json"))
	}
	return bridges
}

// Open finds the attachment to a bridge.
func Open(records, bridge string) (*View, error) {
	r, err := readRecord(records, bridge)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, notAttached(records, bridge)
	}
	return &View{record: *r, dir: r.pins(), file: recordOf(records, bridge)}, nil
}

// uplinks returns the devices beside the bridge's ports.
func (v *View) uplinks() (names []string) {
	for _, index := range hookedIn(v.dir) {
		if l, err := netlink.LinkByIndex(index); err == nil && l.Attrs().MasterIndex != v.Index {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

func (v *View) table(name string) (*ebpf.Map, error) {
	return ebpf.LoadPinnedMap(filepath.Join(v.dir, name), nil)
}

// Counts returns how many packets of the bridge's ports and the uplinks took which path, by reason:
// all but "express" are regular.
func (v *View) Counts() (map[string]uint64, error) {
	m, err := v.table(programMapReasons)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	return counts(m), nil
}

// Counts returns what a View of the attachment would.
func (s *Scon) Counts() map[string]uint64 { return counts(s.programs.Reasons) }

func counts(of *ebpf.Map) map[string]uint64 {
	all := map[string]uint64{}
	for i, name := range Paths {
		var each []uint64
		if err := of.Lookup(uint32(i), &each); err != nil {
			continue
		}
		for _, n := range each {
			all[name] += n
		}
	}
	return all
}

// Permitted reports whether the rules as they are now have been read, and let packets go express:
// those of connections that have been answered, and of others.
func (v *View) Permitted() (established, fresh bool, err error) {
	m, err := v.table(programVarPermits)
	if err != nil {
		return false, false, err
	}
	defer m.Close()
	var g programGeneration
	if err := v.run(programProgGenerations, &g); err != nil {
		return false, false, err
	}
	return permitted(m, g)
}

func permitted(permits *ebpf.Map, g programGeneration) (established, fresh bool, err error) {
	var p programPermit
	if err := permits.Lookup(uint32(0), &p); err != nil {
		return false, false, err
	}
	return g.Rules > 0 && p.Established == g.Rules, g.Rules > 0 && p.Fresh == g.Rules, nil
}

// run runs one of the programs that answer the agent.
func (v *View) run(name string, about any) error {
	p, err := ebpf.LoadPinnedProgram(filepath.Join(v.dir, name), nil)
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = p.Run(&ebpf.RunOptions{Context: about, ContextOut: about})
	return err
}

// Entries lists the Conentries, the busiest first.
func (v *View) Entries() (all []Entry, err error) {
	m, err := v.table(programMapConentries)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	var k programFlow
	var e programConentry
	each := m.Iterate()
	for each.Next(&k, &e) {
		next, err := v.next(k)
		if err != nil {
			return nil, err
		}
		all = append(all, Entry{Flow: flowOf(k), By: int(k.Device), Out: int(e.Device),
			BecomeFrom: netip.AddrPortFrom(addr(e.From), port(e.FromPort)),
			BecomeTo:   netip.AddrPortFrom(addr(e.To), port(e.ToPort)),
			Packets:    e.Packets, Bytes: e.Bytes, Next: next})
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(b.Packets, a.Packets) })
	if err := each.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, err // it is aborted where entries come and go meanwhile: what was read is true
	}
	return all, nil
}

// next asks the programs why a flow's next packet would take the path that it would take.
func (v *View) next(k programFlow) (string, error) {
	q := programQuestion{Flow: k}
	if err := v.run(programProgWhy, &q); err != nil {
		return "", err
	}
	if int(q.Reason) >= len(Paths) {
		return "", fmt.Errorf("the programs are of another version: reason %d", q.Reason)
	}
	return Paths[q.Reason], nil
}

// TurnOff puts a flow on the regular path, or lets it go express again.
func (v *View) TurnOff(f Flow, off bool) error {
	m, err := v.table(programMapTurnedOff)
	if err != nil {
		return err
	}
	defer m.Close()
	if !off {
		return m.Delete(f.key(0))
	}
	if err := m.Put(f.key(0), uint8(1)); err != nil {
		return err
	}
	for _, device := range hookedIn(v.dir) {
		q := programQuestion{Flow: f.key(uint32(device))}
		if err := v.run(programProgExpire, &q); err != nil {
			return err
		}
	}
	return nil
}
