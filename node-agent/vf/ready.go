package vf

import (
	"errors"
	"time"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

// A job holds a copy of all that a goroutine needs to make one VF ready, so that it holds no lock.
type job struct {
	number  uint64
	prepare bool // bind and set first, not only reset
	rested  bool // it was idle when the journal was read
	home    Driver
	given   Driver
	had     *Settings // of its tenant, if it had its own
	pf      string
	bdf     string
	index   int
	group   string
	netdev  string
	mac     string
}

// start moves v to Preparing or Resetting and begins the work; the channel is closed when that has
// ended, or was overtaken. The lock is held.
func (p *Pool) start(v *function, to State, reason string) <-chan struct{} {
	p.move(v, to, reason, time.Now())
	if to == Preparing {
		v.group, _ = p.sys.group(v.bdf) // makeReady asks again and reports
	}
	v.job++
	j := job{
		number: v.job, prepare: to == Preparing, rested: v.rested, home: v.home, given: v.driver,
		had: v.settings, bdf: v.bdf, index: v.index, group: v.group, pf: v.pf.bdf,
		netdev: v.pf.netdev, mac: v.mac,
	}
	v.rested = false
	before, done := v.working, make(chan struct{})
	if p.closed { // the journal says resetting: the next Open does it
		close(done)
		return done
	}
	v.working = done
	p.jobs.Go(func() {
		defer close(done)
		if before != nil {
			<-before // one that was overtaken may be about to unbind the VF
		}
		if p.over(v, j) {
			return
		}
		begin := time.Now()
		err := p.makeReady(j)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.settle(v, Settled{From: to, Took: time.Since(begin), Err: err})
		if v.job == j.number {
			p.finish(v, err)
		}
	})
	return done
}

// over reports whether a job was overtaken before it began, or its pool closed: then the next Open
// does it.
func (p *Pool) over(v *function, j job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return v.job != j.number || p.closed
}

// makeReady does the work of a job. Every step may have been done before, by an agent that was
// killed after it.
func (p *Pool) makeReady(j job) error {
	if j.prepare {
		if _, err := p.sys.group(j.bdf); err != nil {
			return err
		}
		if p.restsAsNetdev(j) {
			return nil
		}
		if j.rested && j.given == Netdev {
			p.noteOf(j, func(*function) {}) // so that it does not rest if this agent is killed now
		}
		if err := p.bind(j); err != nil {
			return err
		}
		if err := p.wire(j); err != nil {
			return err
		}
	}
	if err := p.sys.reset(j.bdf, j.group); err != nil || j.home != Netdev {
		return err
	}
	p.probing.Lock()
	err := p.sys.bindNative(j.pf, j.bdf)
	p.probing.Unlock()
	if err == nil {
		_, err = p.sys.awaitNetdev(p.ctx, j.bdf)
	}
	return err
}

// restsAsNetdev reports whether a VF is as a former agent left it, idle and a network interface, so
// that an agent that starts need not bind all of them twice, one after another.
func (p *Pool) restsAsNetdev(j job) bool {
	driver := p.sys.driver(j.bdf)
	if !j.rested || j.home != Netdev || j.given != Netdev || driver == "" || driver == driverVFIO {
		return false
	}
	netdev := p.sys.netdev(j.bdf)
	if netdev == "" || p.sys.isUp(j.bdf, netdev) {
		return false
	}
	have, err := p.cfg.Network.VFs(j.netdev)
	return err == nil && have[j.index] == p.cfg.VF.settings(j.mac)
}

// bind gives a VF to vfio-pci. One that was given away as a netdev may still be on its way there.
func (p *Pool) bind(j job) error {
	if j.given == Netdev {
		p.probing.Lock()
		defer p.probing.Unlock()
		if err := p.setDown(j.bdf); err != nil {
			return err
		}
	}
	return p.sys.bind(j.bdf)
}

// setDown sets the netdev of a VF down that a tenant has returned, if it is in this namespace. One
// that is in another is still somebody's.
func (p *Pool) setDown(bdf string) error {
	if netdev := p.sys.netdev(bdf); netdev != "" && p.sys.isUp(bdf, netdev) {
		return p.cfg.Network.SetUp(netdev, false)
	}
	return nil
}

// wire sets what the PF enforces for the VF, so that a cold start finds it set.
func (p *Pool) wire(j job) error {
	if j.netdev == "" {
		return nil
	}
	settings := p.cfg.VF.settings(j.mac)
	if j.had != nil && j.had.Link != "" {
		settings.Link = LinkAuto
	}
	if err := p.cfg.Network.SetVF(j.netdev, j.index, settings); err != nil {
		return err
	}
	failpoint.Hit(failpoint.PrepareNetwork)
	if j.had != nil {
		p.noteOf(j, func(v *function) { v.settings = nil })
	}
	return nil
}

// noteOf journals what a job has found or changed, unless it was overtaken.
func (p *Pool) noteOf(j job, change func(*function)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.find(j.bdf); v != nil && v.job == j.number {
		change(v)
		p.note(v, Preparing)
	}
}

// finish takes the end of a job: v is idle, or quarantined until its next try. The lock is held.
func (p *Pool) finish(v *function, err error) {
	now := time.Now()
	if err == nil && v.rest != "" {
		err = errors.New(v.rest)
	}
	v.rest = ""
	if err == nil {
		v.failures, v.driver, v.settings = 0, v.home, nil
		p.note(v, Idle)
		p.move(v, Idle, "", now)
		return
	}
	v.failures++
	v.failed++
	v.retryAt = retryAt(max(v.failures, v.faulty), now)
	p.note(v, Quarantined)
	p.move(v, Quarantined, err.Error(), now)
	p.cfg.Log.Warn("VF quarantined", "vf", v.bdf, "reason", err, "failures", v.failures,
		"retry_in", v.retryAt.Sub(now))
	if p.closed {
		return
	}
	number := v.job
	v.retry = time.AfterFunc(v.retryAt.Sub(now), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if v.job == number && v.state == Quarantined && !p.closed {
			p.start(v, Preparing, "another try after: "+v.reason)
		}
	})
}
