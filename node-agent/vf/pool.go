package vf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

// A Lease is the right to use one VF until Return.
type Lease struct {
	BDF        string
	Generation uint64
	Group      string // node of the VF's IOMMU group, /dev/vfio/N
	PF         string
	Netdev     string // the PF's, empty where it has none
	Index      int    // of the VF on its PF
	Ordinal    int    // of the VF among those its PFs can have: the same after a restart
	MAC        string // empty where the PF has no netdev
	Owner      Owner
	Driver     Driver // what the VF is bound to
	Interface  string // the VF's own netdev as it was made, where Driver is Netdev
	Gone       bool   // only from Leases: the VF is not there any more
}

// A Want says which VF a lease is to be of, and by which driver it is used. The zero value is any
// VF, by vfio.
type Want struct {
	BDF    string
	Driver Driver
	// It is one that is kept bound to that driver, or to any if there is no Driver, so that nothing
	// is bound while the caller waits.
	Kept bool
	Set  func(*Settings) // changes the settings for this lease; nil: they are the pool's
}

// A Pool holds VFs. Its methods may be called from any goroutine. Open, Close and a Lease of a
// netdev that is not kept as one wait for hardware, the others never do.
type Pool struct {
	cfg     Config
	sys     sysfs
	journal journal
	lock    *os.File
	ctx     context.Context
	cancel  context.CancelFunc
	jobs    sync.WaitGroup
	probing sync.Mutex // held while a VF is given to the kernel's own driver, or taken from it

	mu       sync.Mutex // guards all below, and the order of the journal's writes
	closed   bool
	pfs      []*physical
	vfs      []*function      // by address
	found    map[string]entry // of the journal, of VFs that are not in vfs
	changes  uint64           // counts what readers are shown
	watchers map[chan struct{}]struct{}
}

// A physical function.
type physical struct {
	bdf     string
	netdev  string
	first   int  // ordinal of its VF 0
	present bool // it has a driver
	linkUp  bool
}

func (f *physical) String() string {
	if f.netdev == "" {
		return "PF " + f.bdf
	}
	return fmt.Sprintf("PF %s (%s)", f.netdev, f.bdf)
}

// A virtual function. leased outlives the state Leased when the VF goes away under its tenant.
type function struct {
	bdf        string
	pf         *physical
	index      int
	group      string
	mac        string
	state      State
	since      time.Time
	reason     string
	leased     bool
	owner      Owner
	home       Driver    // it is bound to when it is idle
	driver     Driver    // the driver of its last lease; home again when it is idle
	settings   *Settings // of its last lease, until they are taken back; nil: the pool's
	rested     bool      // the journal that was found has it idle
	lost       string    // why the tenant has lost it
	generation uint64
	// The number of the last prepare or reset job. A job with a smaller number was overtaken, and
	// its end does not count.
	job      uint64
	working  <-chan struct{} // until that job, or the furnishing, has ended; nil: there was none
	failures int             // in a row
	failed   int             // ever
	faults   int             // reported by VMMs, or storms
	faulty   int             // leases in a row that ended with a fault
	fault    bool            // in this lease
	rest     string          // why it is quarantined when it has been reset; empty: it is not

	refusedSince time.Time // the first of
	refusals     int       // refusals by the IOMMU

	changed uint64    // number of its last change
	settled []Settled // lately

	retry   *time.Timer
	retryAt time.Time
	log     *slog.Logger
}

func (v *function) lease() Lease {
	l := Lease{
		BDF: v.bdf, Generation: v.generation, Group: v.group, PF: v.pf.bdf, Netdev: v.pf.netdev,
		Index: v.index, Ordinal: v.pf.first + v.index, MAC: v.mac, Owner: v.owner, Driver: v.driver,
		Gone: v.state == Gone,
	}
	if v.settings != nil {
		l.MAC = v.settings.MAC
	}
	return l
}

// record writes the present facts about v to the journal.
func (p *Pool) record(v *function, state State) error {
	e := entry{BDF: v.bdf, State: state, Generation: v.generation, Driver: v.driver,
		Settings: v.settings}
	if state == Leased {
		owner := v.owner
		e.Owner = &owner
	}
	return p.journal.write(e)
}

// note records a state where a failure to do so does no harm: a stale "leased" in the journal only
// costs one more reset after a restart.
func (p *Pool) note(v *function, state State) {
	if err := p.record(v, state); err != nil {
		p.cfg.Log.Warn("journal", "error", err)
	}
}

// Lease gives owner a VF, or says why none can be had now (ErrEmpty, ErrLinkDown). The lease is in
// the journal when it returns.
func (p *Pool) Lease(owner Owner, want Want) (Lease, error) {
	if !want.Kept {
		want.Driver = cmp.Or(want.Driver, VFIO)
	}
	if err := owner.Check(); err != nil {
		return Lease{}, err
	}
	if !slices.Contains([]Driver{"", VFIO, Netdev}, want.Driver) {
		return Lease{}, fmt.Errorf("a VF is leased by %s or %s, not by %q",
			VFIO, Netdev, want.Driver)
	}
	lease, furnish, err := p.lease(owner, want)
	if err != nil || furnish == nil {
		return lease, err
	}
	defer p.jobs.Done()
	if err = furnish(&lease); err == nil && !p.holds(lease) {
		err = errReturned
	}
	if err != nil {
		p.Return(lease)
		return Lease{}, fmt.Errorf("VF %s: %w", lease.BDF, err)
	}
	return lease, nil
}

// lease chooses a VF and writes the lease down. Where the VF has to be set or bound otherwise yet,
// furnish does that; it is counted as a job, so that the pool is not closed before.
func (p *Pool) lease(owner Owner, want Want) (l Lease, furnish func(*Lease) error, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Lease{}, nil, errors.New("the VF pool is closed")
	}
	v, err := choose(p.vfs, p.whoseMAC(want))
	if err != nil {
		return Lease{}, nil, err
	}
	settings := p.settingsFor(v, want)
	if settings != nil {
		if err := p.apart(settings.MAC, v, owner); err != nil {
			return Lease{}, nil, err
		}
	}
	failpoint.Hit(failpoint.LeaseChosen)
	v.generation++
	v.owner, v.driver, v.settings = owner, cmp.Or(want.Driver, v.home), settings
	if err := p.record(v, Leased); err != nil {
		v.owner, v.driver, v.settings = Owner{}, v.home, nil
		return Lease{}, nil, err
	}
	v.leased = true
	p.move(v, Leased, "", time.Now())
	failpoint.Hit(failpoint.LeaseJournalled)
	bound := v.driver == v.home
	if v.driver == VFIO && settings == nil {
		return v.lease(), nil, nil
	}
	p.jobs.Add(1)
	done := make(chan struct{})
	v.working = done // a job that takes the VF back waits until it is furnished
	return v.lease(), func(l *Lease) error {
		defer close(done)
		return p.furnish(l, settings, bound)
	}, nil
}

// settingsFor returns the settings of a lease that are not those of the pool, or nil.
func (p *Pool) settingsFor(v *function, want Want) *Settings {
	if want.Set == nil || v.pf.netdev == "" {
		return nil
	}
	usual := p.cfg.VF.settings(v.mac)
	own := usual
	if want.Set(&own); own == usual {
		return nil
	}
	return &own
}

// whoseMAC has a lease that asks for the MAC of a VF be one of that VF.
func (p *Pool) whoseMAC(want Want) Want {
	var own Settings
	if want.Set == nil || want.BDF != "" {
		return want
	}
	want.Set(&own)
	for _, v := range p.vfs {
		if own.MAC != "" && strings.EqualFold(own.MAC, v.mac) {
			want.BDF = v.bdf
		}
	}
	return want
}

// apart returns an error if a MAC for v is that of a card of the pool or of another VF: frames to
// it would come to v, too, or in its place. A pod may have one MAC on several cards, as a bond has.
func (p *Pool) apart(mac string, v *function, owner Owner) error {
	for _, pf := range p.pfs {
		own, err := p.sys.read(pf.bdf, filepath.Join("net", pf.netdev, "address"))
		if err == nil && pf.netdev != "" && strings.EqualFold(own, mac) {
			return fmt.Errorf("the MAC %s is that of %s; ask for another", mac, pf)
		}
	}
	for _, other := range p.vfs {
		switch {
		case other == v || other.state == Gone:
		case strings.EqualFold(other.mac, mac):
			return fmt.Errorf("the MAC %s is that of VF %s; ask for another", mac, other.bdf)
		case other.settings == nil || !strings.EqualFold(other.settings.MAC, mac):
		case !other.leased:
			return fmt.Errorf("%w: the MAC %s is being taken from VF %s", ErrEmpty, mac, other.bdf)
		case other.pf == v.pf || owner.NetnsCookie == 0 ||
			owner.NetnsCookie != other.owner.NetnsCookie:
			return fmt.Errorf("the MAC %s is that of VF %s, which %s has; ask for another", mac,
				other.bdf, other.owner)
		}
	}
	return nil
}

// furnish makes a VF that was just leased what its tenant has asked for.
func (p *Pool) furnish(l *Lease, settings *Settings, bound bool) (err error) {
	if settings != nil {
		if err := p.cfg.Network.SetVF(l.Netdev, l.Index, *settings); err != nil {
			return err
		}
		failpoint.Hit(failpoint.LeaseSet)
	}
	switch {
	case l.Driver == VFIO:
	case bound:
		if l.Interface = p.sys.netdev(l.BDF); l.Interface == "" {
			return errors.New("its network interface is not in the agent's network namespace")
		}
	default:
		l.Interface, err = p.giveNetdev(*l)
	}
	return err
}

// giveNetdev binds a leased VF to the kernel's own driver and returns the name of its netdev. The
// holder may die meanwhile, and its lease be returned: then the VF is bound here no more, and taken
// back only when it is bound.
func (p *Pool) giveNetdev(lease Lease) (netdev string, err error) {
	p.probing.Lock()
	if err = errReturned; p.holds(lease) {
		err = p.sys.bindNative(lease.PF, lease.BDF)
	}
	p.probing.Unlock()
	if err != nil {
		return "", err
	}
	netdev, err = p.sys.awaitNetdev(p.ctx, lease.BDF)
	if err == nil && !p.holds(lease) {
		err = errReturned
	}
	return netdev, err
}

var errReturned = errors.New("it was returned meanwhile")

// holds reports whether a lease is still valid.
func (p *Pool) holds(lease Lease) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tenancy(lease) != nil
}

// SetOwner completes the owner of a lease, once the process exists that will hold the VF and before
// it touches the VF.
func (p *Pool) SetOwner(lease Lease, owner Owner) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.tenancy(lease)
	if v == nil {
		return fmt.Errorf("the lease of %s by %s has ended", lease.BDF, lease.Owner)
	}
	before := v.owner
	v.owner = owner
	if err := p.record(v, Leased); err != nil {
		v.owner = before
		return err
	}
	p.tell(v)
	failpoint.Hit(failpoint.OwnerJournalled)
	return nil
}

// Return gives a VF back. The caller has ended whatever used it. It cannot fail; returning an old
// lease, or one twice, does nothing.
func (p *Pool) Return(lease Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.tenancy(lease)
	if v == nil {
		p.cfg.Log.Debug("late return of a lease", "vf", lease.BDF, "generation", lease.Generation)
		return
	}
	failpoint.Hit(failpoint.ReturnBegin)
	v.owner, v.leased, v.lost = Owner{}, false, ""
	v.count()
	p.tell(v)
	if v.state == Gone {
		p.vanish(v)
		return
	}
	p.note(v, v.back())
	failpoint.Hit(failpoint.ReturnJournalled)
	p.start(v, v.back(), "")
}

// tenancy is the VF that lease is still valid for, or nil.
func (p *Pool) tenancy(lease Lease) *function {
	v := p.find(lease.BDF)
	if v == nil || !v.leased || v.generation != lease.Generation {
		return nil
	}
	return v
}

func (p *Pool) find(bdf string) *function {
	i, ok := slices.BinarySearchFunc(p.vfs, bdf, func(v *function, bdf string) int {
		return cmp.Compare(v.bdf, bdf)
	})
	if !ok {
		return nil
	}
	return p.vfs[i]
}

// Fault takes an error that a VF's user saw. The lease of a leased VF is lost then; an idle VF is
// reset.
func (p *Pool) Fault(bdf, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.find(bdf)
	if v == nil {
		return
	}
	v.faults++
	p.tell(v)
	p.cfg.Log.Warn("VF error", "vf", bdf, "state", v.state, "owner", v.owner, "error", why)
	switch v.state {
	case Leased:
		v.reason, v.fault, v.lost = why, true, why
	case Idle:
		p.note(v, v.back())
		p.start(v, v.back(), why)
	}
}

// count takes note of how a lease ended: a VF that failed one tenant after the other has to rest.
func (v *function) count() {
	if !v.fault {
		v.faulty = 0
		return
	}
	v.fault = false
	v.faulty++
	if v.faulty >= faultsBorne && v.rest == "" {
		v.rest = fmt.Sprintf("it failed %d tenants in a row: %s", v.faulty, v.reason)
	}
}

// Leases returns all leases there are; after Open, those that a former agent left. The caller
// decides about each. It keeps a lease as long as its holder lives. Otherwise it ends whatever uses
// the VF and returns the lease. An owner without a kind is unknown, since its entry was unreadable:
// return that lease after every unknown sandbox has been ended.
func (p *Pool) Leases() []Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	var leases []Lease
	for _, v := range p.vfs {
		if v.leased {
			leases = append(leases, v.lease())
		}
	}
	return leases
}

// A Status is one VF as it is now.
type Status struct {
	BDF, PF, MAC  string
	State         State
	Since         time.Time
	Reason        string // why it is quarantined, resetting or gone
	Owner         Owner
	Driver        Driver
	Home          Driver // it is bound to when it is idle
	Lost          string // why its tenant must end, and return the lease; empty: it need not
	Generation    uint64
	ResetFailures int       // failed preparations and resets, ever
	Faults        int       // errors reported by its users, ever
	RetryAt       time.Time // of a quarantined VF
	LinkUp        bool      // of its PF
}

func (v *function) status() Status {
	s := Status{
		BDF: v.bdf, PF: v.pf.bdf, MAC: v.mac, State: v.state, Since: v.since, Reason: v.reason,
		Owner: v.owner, Driver: v.driver, Home: v.home, Lost: v.lost, Generation: v.generation,
		ResetFailures: v.failed, Faults: v.faults, LinkUp: v.pf.linkUp,
	}
	if v.state == Quarantined {
		s.RetryAt = v.retryAt
	}
	return s
}

// Snapshot returns the pool as it is now, by address.
func (p *Pool) Snapshot() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Status, len(p.vfs))
	for i, v := range p.vfs {
		all[i] = v.status()
	}
	return all
}

// Close stops the pool and returns when nothing of it runs. Leases stay as they are, in the
// journal, for the next Open.
func (p *Pool) Close() {
	p.stop()
	_ = p.lock.Close()
}

func (p *Pool) stop() {
	p.mu.Lock()
	p.closed = true
	for _, v := range p.vfs {
		if v.retry != nil {
			v.retry.Stop()
		}
	}
	p.mu.Unlock()
	p.cancel()
	p.jobs.Wait()
}
