package vf

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

// The pool follows its PFs by looking at sysfs whenever the kernel says that something changed. It
// compares the state there with its own, and not event with event, so that a lost or doubled event
// costs nothing.

// A sighting holds what sysfs shows of one PF.
type sighting struct {
	present bool
	netdev  string
	linkUp  bool
	vfs     map[string]int
}

func (s sysfs) look(pf string) sighting {
	present := s.driver(pf) != ""
	netdev := s.netdev(pf)
	return sighting{present: present, netdev: netdev, linkUp: present && s.carrier(pf, netdev),
		vfs: s.vfs(pf)}
}

// follow rescans until events is closed.
func (p *Pool) follow(events <-chan struct{}) {
	for range events {
		for _, pf := range p.pfs { // the list itself never changes
			p.rescan(pf)
		}
	}
}

func (p *Pool) rescan(pf *physical) {
	seen := p.sys.look(pf.bdf)
	p.mu.Lock()
	back := seen.present && !pf.present
	p.mu.Unlock()
	if back {
		p.cfg.Log.Info("PF is back", "pf", pf.bdf)
		if err := p.bring(pf.bdf); err != nil {
			p.cfg.Log.Warn("PF cannot be used", "pf", pf.bdf, "error", err)
			return // it is tried again with the next event
		}
		seen = p.sys.look(pf.bdf)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.apply(pf, seen)
	}
}

// bring makes a PF have its VFs, without a native driver on new ones, and its netdev up.
func (p *Pool) bring(pf string) error {
	if p.sys.driver(pf) == "" {
		return fmt.Errorf("PF %s has no driver; load it (lspci -k -s %s names it)", pf, pf)
	}
	if err := p.sys.write(p.sys.device(pf, "sriov_drivers_autoprobe"), "0"); err != nil {
		return err
	}
	failpoint.Hit(failpoint.OpenAutoprobe)
	if err := p.up(pf); err != nil {
		return err
	}
	begin := time.Now()
	if err := p.sys.create(pf, p.cfg.NumVFs); err != nil {
		return err
	}
	// A driver that was just bound may not have made its netdev before; create waited for it.
	if err := p.up(pf); err != nil {
		return err
	}
	failpoint.Hit(failpoint.OpenCreated)
	p.cfg.Log.Info("VFs are there", "pf", pf, "took", time.Since(begin).Round(time.Millisecond))
	return nil
}

// up sets the netdev of a PF up, if there is one.
func (p *Pool) up(pf string) error {
	if netdev := p.sys.netdev(pf); netdev != "" && !p.sys.isUp(pf, netdev) {
		return p.cfg.Network.SetUp(netdev, true)
	}
	return nil
}

// apply brings the pool into line with a sighting of pf. It returns one channel per VF that it
// began to prepare. The lock is held.
func (p *Pool) apply(pf *physical, seen sighting) (preparing []<-chan struct{}) {
	pf.present, pf.netdev = seen.present, seen.netdev
	if pf.linkUp != seen.linkUp {
		pf.linkUp = seen.linkUp
		p.cfg.Log.Info("PF link", "pf", pf.bdf, "netdev", pf.netdev, "up", pf.linkUp)
		p.linkChanged(pf)
	}
	for _, v := range slices.Clone(p.vfs) {
		if _, there := seen.vfs[v.bdf]; v.pf == pf && !there && v.state != Gone {
			p.gone(v)
		}
	}
	for _, bdf := range slices.Sorted(maps.Keys(seen.vfs)) {
		v := p.find(bdf)
		if v == nil {
			v = p.add(pf, bdf, seen.vfs[bdf])
		}
		if v.state == Gone && !v.leased {
			v.pf, v.index, v.mac = pf, seen.vfs[bdf], p.macOf(pf, bdf)
			p.move(v, Unbound, "", time.Now())
		}
		if v.state == Unbound || v.home == "" { // no job of it is under way
			if v.home = VFIO; pf.netdev != "" && v.index >= len(seen.vfs)-p.cfg.NetdevVFs {
				v.home = Netdev
			}
		}
		if v.state == Unbound {
			preparing = append(preparing, p.start(v, Preparing, ""))
		}
	}
	return preparing
}

// linkChanged tries again what may have failed for want of a link: igb refuses rates without one.
func (p *Pool) linkChanged(pf *physical) {
	for _, v := range p.vfs {
		if v.pf != pf {
			continue
		}
		p.tell(v)
		if pf.linkUp && v.state == Quarantined {
			p.start(v, Preparing, "the link is up; before: "+v.reason)
		}
	}
}

// add takes a VF into the pool: leased if the journal says so, else unbound.
func (p *Pool) add(pf *physical, bdf string, index int) *function {
	v := &function{
		bdf: bdf, pf: pf, index: index, mac: p.macOf(pf, bdf), state: Unbound, since: time.Now(),
		driver: VFIO, log: p.cfg.Log,
	}
	v.group, _ = p.sys.group(bdf) // its absence is reported by the VF's preparation
	if e, ok := p.found[bdf]; ok {
		delete(p.found, bdf)
		v.remember(e)
	}
	p.insert(v)
	return v
}

func (p *Pool) macOf(pf *physical, bdf string) string {
	if pf.netdev == "" {
		return ""
	}
	mac, _ := p.cfg.VF.mac(p.cfg.Node, bdf) // the prefix has been checked
	return mac
}

func (p *Pool) insert(v *function) {
	i, _ := slices.BinarySearchFunc(p.vfs, v.bdf, func(v *function, bdf string) int {
		return cmp.Compare(v.bdf, bdf)
	})
	p.vfs = slices.Insert(p.vfs, i, v)
	p.tell(v)
}

// remember takes over what the journal says of v. If the journal is lost, so is the count of
// leases. It then goes on from the clock, which is further than any count can be.
func (v *function) remember(e entry) {
	v.generation, v.driver, v.settings = e.Generation, cmp.Or(e.Driver, VFIO), e.Settings
	v.rested = e.State == Idle
	if e.State != Leased {
		return
	}
	v.state, v.leased = Leased, true
	if e.Owner != nil {
		v.owner = *e.Owner
	} else {
		v.generation, v.reason = uint64(v.since.Unix()), "leased by an unknown owner: "+e.refused
	}
}

const goneVF = "the VF is gone"

// gone moves v out of use. A lease on it stays until it is returned, so that its sandbox is not
// forgotten.
func (p *Pool) gone(v *function) {
	v.job++
	p.move(v, Gone, "its PF took it away", time.Now())
	p.cfg.Log.Warn("VF is gone", "vf", v.bdf, "owner", v.owner)
	if v.leased {
		v.lost = goneVF
		return
	}
	p.vanish(v)
}

// vanish ends the lease, if any, of a VF that is gone. If the VF has come back since, vanish
// prepares it. The journal keeps its generation.
func (p *Pool) vanish(v *function) {
	p.note(v, Gone)
	if v.pf.bdf == "" { // of a PF that this pool does not have
		p.found[v.bdf] = entry{BDF: v.bdf, State: Gone, Generation: v.generation}
		p.vfs = slices.DeleteFunc(p.vfs, func(other *function) bool { return other == v })
		return
	}
	if index, back := p.sys.vfs(v.pf.bdf)[v.bdf]; back && !p.closed {
		v.index = index
		p.move(v, Unbound, "", time.Now())
		p.start(v, Preparing, "")
	}
}
