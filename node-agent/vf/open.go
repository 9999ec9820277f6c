package vf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

// Open takes the configured PFs into use and returns when each VF is idle, quarantined or found
// leased. If no VF can be used at all, it fails and puts back what it changed.
func Open(ctx context.Context, cfg Config) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	dir := journalDir(cfg.Run)
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.OpenLocked)
	_, statErr := os.Stat(hostFile(cfg.Run))
	fresh := errors.Is(statErr, os.ErrNotExist)
	p := &Pool{
		cfg: cfg, sys: sysfs{cfg.Sysfs, cfg.Dev, cfg.Kernel}, journal: journal(dir), lock: lock,
		watchers: map[chan struct{}]struct{}{},
	}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := p.open(ctx); err != nil {
		p.stop()
		if fresh {
			if back := undo(cfg.Run, p.sys, cfg.Network); back != nil {
				err = fmt.Errorf("%w; and the host could not be put back: %w", err, back)
			}
		}
		_ = lock.Close()
		return nil, err
	}
	return p, nil
}

func journalDir(run string) string { return filepath.Join(run, "vf") }

// open does the work of Open.
func (p *Pool) open(ctx context.Context) error {
	addresses, err := p.sys.choosePFs(p.cfg.PFs)
	if err != nil {
		return err
	}
	p.found, err = p.journal.read(func(bdf string, err error) {
		p.cfg.Log.Warn("journal entry refused; the VF is not touched until its sandbox has ended",
			"vf", bdf, "error", err)
	})
	if err != nil {
		return err
	}
	if err := recordFound(p.cfg.Run, p.sys, p.cfg.Network, addresses); err != nil {
		return err
	}
	failpoint.Hit(failpoint.OpenUndoRecorded)
	// Watch before the first look: what changes after that look is an event.
	events, err := p.cfg.Kernel.Watch(p.ctx)
	if err != nil {
		return err
	}
	refused, err := p.cfg.Kernel.Refusals(p.ctx)
	if err != nil {
		p.cfg.Log.Warn("VFs that the IOMMU refuses again and again will not be noticed", "err", err)
	} else {
		p.jobs.Go(func() { p.watchRefusals(refused) })
	}
	err = p.takePFs(ctx, addresses)
	p.jobs.Go(func() { p.follow(events) })
	if err != nil {
		return err
	}
	return p.usable()
}

// takePFs brings each PF, adds its VFs and waits until they have been prepared.
func (p *Pool) takePFs(ctx context.Context, addresses []string) error {
	var preparing []<-chan struct{}
	first := 0
	for _, bdf := range addresses {
		if err := p.bring(bdf); err != nil {
			return err
		}
		total, err := p.sys.readInt(bdf, "sriov_totalvfs")
		if err != nil {
			return err
		}
		pf := &physical{bdf: bdf, first: first}
		first += total // and not those it has now, which may change
		seen := p.sys.look(bdf)
		p.mu.Lock()
		p.pfs = append(p.pfs, pf)
		preparing = append(preparing, p.apply(pf, seen)...)
		p.mu.Unlock()
	}
	p.mu.Lock()
	p.keepStrays()
	p.mu.Unlock()
	for _, done := range preparing {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// keepStrays turns leases in the journal of VFs that are not there into gone VFs.
func (p *Pool) keepStrays() {
	for bdf, e := range p.found {
		if e.State != Leased {
			continue // kept for its generation, should the VF come
		}
		delete(p.found, bdf)
		v := &function{bdf: bdf, pf: &physical{}, since: time.Now(), log: p.cfg.Log}
		v.remember(e)
		v.state, v.reason, v.lost = Gone, "the journal has it, its PF does not", goneVF
		p.insert(v)
	}
}

// usable fails if every VF of the pool has failed. VFs without a link get their time.
func (p *Pool) usable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var why error
	for _, v := range p.vfs {
		switch v.state {
		case Idle, Leased:
			return nil
		case Quarantined:
			if !v.pf.linkUp {
				return nil
			}
			if why == nil {
				why = fmt.Errorf("none of %d VFs can be used; %s: %s", len(p.vfs), v.bdf, v.reason)
			}
		}
	}
	return why
}

// lockDir makes dir and the lock that lets only one process keep it. The lock ends with its
// process, however that ends.
func lockDir(dir string) (*os.File, error) {
	for {
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return nil, fmt.Errorf("run directory: %w; run as root", err)
		}
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("run directory: %w", err)
		}
		path := filepath.Join(dir, "lock")
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // an undo removed the directory just now
		}
		if err != nil {
			return nil, fmt.Errorf("run directory: %w; run as root", err)
		}
		if err := flock(f); err != nil {
			f.Close()
			return nil, fmt.Errorf(
				"another agent keeps the VFs of %s (%w); stop it, or give this one another run directory",
				dir, err)
		}
		if sameFile(f, path) {
			return f, nil
		}
		f.Close() // an undo removed the file before we had its lock
	}
}

// lockPatience bounds how long a lock may outlive its process. An agent that is killed while it
// starts a child leaves the lock to that child until its exec.
const lockPatience = time.Second

func flock(f *os.File) error {
	for begin := time.Now(); ; time.Sleep(lockPatience / 50) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || time.Since(begin) > lockPatience {
			return err
		}
	}
}

func sameFile(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}
