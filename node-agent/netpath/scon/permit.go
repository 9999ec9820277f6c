package scon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	nfnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const tries = 10 // to read rules that change meanwhile

// hear has keep look at the rules when they have changed.
func (s *Scon) hear() (func(), error) {
	rules, err := nfnetlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	s.ends = append(s.ends, func() { rules.Close() })
	if err := rules.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return nil, err
	}
	return func() {
		for {
			// A message that was lost was a change, too.
			if _, err := rules.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			select {
			case s.look <- struct{}{}:
			default:
			}
		}
	}, nil
}

// permit reads the rules, and permits the express path for their generation, or does not. Rules
// that are changed meanwhile have another one.
func (s *Scon) permit() error {
	for range tries {
		before, err := s.generation()
		if err == nil && before.Rules != s.whole {
			err = settled()
		}
		if err != nil {
			return err
		}
		s.whole = before.Rules
		if s.rules, err = s.rules.at(before.Rules); err != nil {
			return err
		}
		refused, err := s.refusals(s.rules)
		if err != nil {
			return err
		}
		if now, err := s.generation(); err != nil || now.Rules != before.Rules {
			if err != nil {
				return err
			}
			s.rules = nil // they may be of either
			continue
		}
		always := func(r Refusal) bool { return !r.Fresh }
		var p programPermit
		if !slices.ContainsFunc(refused, always) {
			p.Established = before.Rules
		}
		if len(refused) == 0 {
			p.Fresh = before.Rules
		}
		if err := s.allow(p); err != nil {
			return err
		}
		s.tell(refused)
		return nil
	}
	return nil // their last change is heard of, too
}

// settled returns once no commit of nftables is under way that was when it was called. A commit's
// generation is there before the sets and policies that it brings. An empty batch waits for it, and
// makes no generation. All network namespaces wait meanwhile who would change theirs: so it is sent
// once for each generation.
func settled() error {
	conn, err := nfnetlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	ofNftables := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
	_, err = conn.SendMessages([]nfnetlink.Message{
		{Header: nfnetlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: nfnetlink.Request},
			Data: ofNftables},
		{Header: nfnetlink.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: nfnetlink.Request},
			Data: ofNftables},
	})
	if err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	// The kernel has answered by now, if it has refused: else it says nothing.
	const errnoAt, most = 16, 1 << 12
	answer, n := make([]byte, most), 0
	if failed := raw.Control(func(fd uintptr) {
		n, _, err = unix.Recvfrom(int(fd), answer, unix.MSG_DONTWAIT)
	}); failed != nil {
		return failed
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return nil
	case err == nil && n >= errnoAt+4:
		err = unix.Errno(-int32(binary.NativeEndian.Uint32(answer[errnoAt:])))
	case err == nil:
		err = unix.EBADMSG
	}
	return fmt.Errorf("whether the rules are whole cannot be told: %w", err)
}

// allow tells the programs what they may do, and how many entries a container may have, so that all
// together fit.
func (s *Scon) allow(p programPermit) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.Share = uint64(min(atMost, entries/max(len(s.hooked), 1)))
	return s.programs.Permits.Put(uint32(0), p)
}

// tell logs what has begun to keep packets from the express path.
func (s *Scon) tell(refused []Refusal) {
	s.mu.Lock()
	was := s.refused
	s.refused = refused
	s.mu.Unlock()
	for _, r := range refused {
		if !slices.Contains(was, r) {
			s.Log.Warn("packets stay on the regular path", "bridge", s.Bridge, "by", r.Where,
				"why", r.Why, "before-an-answer", r.Fresh)
		}
	}
	if len(refused) == 0 && len(was) > 0 {
		s.Log.Info("packets may take the express path again", "bridge", s.Bridge)
	}
}

// Refused returns what keeps packets from the express path.
func (s *Scon) Refused() []Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refused)
}

// refusals returns what keeps packets from the express path: rules, and what else looks at packets
// on the regular one.
func (s *Scon) refusals(by *ruleset) ([]Refusal, error) {
	if s.at.moved() {
		return []Refusal{{Where: "nf_tables", Why: "the module was loaded anew; end who follows," +
			" and attach again"}}, nil
	}
	s.mu.Lock()
	hooked, uplinks := maps.Clone(s.hooked), s.out
	s.mu.Unlock()
	return by.refuse(s.Bridge, s.bridge, uplinks, hooked, s.pins())
}

// Refused reads anew what keeps packets from the express path.
func (v *View) Refused() ([]Refusal, error) {
	hooked := map[int]string{}
	for _, index := range hookedIn(v.dir) {
		if l, err := netlink.LinkByIndex(index); err == nil {
			hooked[index] = l.Attrs().Name
		}
	}
	rules, err := readRuleset()
	if err != nil {
		return nil, err
	}
	return rules.refuse(v.Bridge, v.Index, v.uplinks(), hooked, v.dir)
}

func (rules *ruleset) refuse(bridge string, number int, uplinks []string,
	hooked map[int]string, pins string) ([]Refusal, error) {
	devices, index := []string{bridge}, map[uint32]string{uint32(number): bridge}
	for number, name := range hooked {
		devices = append(devices, name)
		index[uint32(number)] = name
	}
	slices.Sort(devices)
	var paths []path
	for _, fresh := range []bool{false, true} {
		add := func(in, out string) {
			paths = append(paths, path{in: in, out: out, devices: devices, index: index,
				fresh: fresh})
		}
		add(bridge, bridge)
		for _, uplink := range uplinks {
			add(bridge, uplink)
			add(uplink, bridge)
		}
		add("", "")
	}
	around, err := around(number, hooked, pins)
	return append(around, rules.refusals(paths)...), err
}

// around finds what looks at packets beside the rules of nftables. What cannot be asked for counts
// as something that looks.
func around(number int, hooked map[int]string, pins string) (all []Refusal, err error) {
	bridge, err := netlink.LinkByIndex(number)
	if err != nil {
		return nil, err
	}
	name := bridge.Attrs().Name
	for _, index := range slices.Sorted(maps.Keys(hooked)) {
		if device, err := netlink.LinkByIndex(index); err == nil { // else it has gone
			all = append(all, filters(device, netlink.HANDLE_MIN_INGRESS, "comes in")...)
			all = append(all, behind(pins, index, hooked[index])...)
		}
	}
	all = append(all, filters(bridge, netlink.HANDLE_MIN_INGRESS, "comes in")...)
	all = append(all, filters(bridge, netlink.HANDLE_MIN_EGRESS, "goes out")...)
	qdiscs, err := netlink.QdiscList(bridge)
	if err != nil {
		return nil, fmt.Errorf("queues of %s: %w", name, err)
	}
	for _, q := range qdiscs {
		if kind := q.Type(); kind != "noqueue" && kind != "clsact" && kind != "ingress" {
			all = append(all, Refusal{Where: "qdisc " + kind + " of " + name,
				Why: "express packets would not wait in it"})
		}
	}
	for _, attach := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		others, err := link.QueryPrograms(link.QueryOptions{Target: number, Attach: attach})
		if err != nil {
			return nil, fmt.Errorf("BPF programs at %s: %w", name, err)
		}
		if len(others.Programs) > 0 {
			all = append(all, Refusal{Where: "a BPF program at " + name,
				Why: "express packets do not pass the bridge"})
		}
	}
	others, err := hooks()
	if err != nil {
		return nil, fmt.Errorf("BPF links: %w", err)
	}
	return append(all, others...), nil
}

// filters finds tc's filters of a device. At the way out of a port they see express packets, too.
func filters(device netlink.Link, parent uint32, what string) []Refusal {
	filters, err := netlink.FilterList(device, parent)
	if err == nil && len(filters) == 0 {
		return nil
	}
	why := "it looks at what " + what
	if err != nil {
		why = fmt.Sprintf("whether one is there is not known: %v", err)
	}
	return []Refusal{{Where: "tc filter of " + device.Attrs().Name, Why: why}}
}

// arrives returns the programs that attachments have at a device where packets come in, those of
// other bridges and perhaps of another version of fastiov, and that of the one with these pins.
func arrives(pins string, index int) (ours map[ebpf.ProgramID]bool, own ebpf.ProgramID, err error) {
	ours = map[ebpf.ProgramID]bool{}
	files, _ := filepath.Glob(filepath.Join(filepath.Dir(pins), "*", arrivePin(index)))
	for _, file := range files {
		at, err := link.LoadPinnedLink(file, nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has been detached meanwhile
		}
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", file, err)
		}
		info, err := at.Info()
		at.Close()
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", file, err)
		}
		ours[info.Program] = true
		if filepath.Dir(file) == filepath.Clean(pins) {
			own = info.Program
		}
	}
	return ours, own, nil
}

func arrivePin(index int) string { return programProgArrive + "-" + strconv.Itoa(index) }

// behind finds a BPF program that stands behind ours where packets come in. One before it sees all,
// and that of another bridge's express path takes nothing but its own bridge's.
func behind(pins string, index int, name string) []Refusal {
	at, err := link.QueryPrograms(link.QueryOptions{Target: index,
		Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	ours, own := map[ebpf.ProgramID]bool(nil), ebpf.ProgramID(0)
	if err == nil && len(at.Programs) > 1 {
		ours, own, err = arrives(pins, index)
	}
	where := "a BPF program at " + name
	if err != nil {
		return []Refusal{{Where: where,
			Why: fmt.Sprintf("whether one is behind the express path is not known: %v", err)}}
	}
	if len(at.Programs) <= 1 {
		return nil // ours
	}
	for _, other := range slices.Backward(at.Programs) {
		if other.ID == own {
			break
		}
		if !ours[other.ID] {
			return []Refusal{{Where: where,
				Why: fmt.Sprintf("number %d stands behind the express path", other.ID)}}
		}
	}
	return nil
}

// hooks finds BPF programs among the rules, which no table shows.
func hooks() (all []Refusal, err error) {
	links := new(link.Iterator)
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info()
		if err == nil && info.Type == link.NetfilterType {
			all = append(all, Refusal{Where: fmt.Sprintf("BPF link %d", info.ID),
				Why: "a program of netfilter looks at each packet"})
		}
	}
	return all, links.Err()
}
