package bridge

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A guard keeps the rules of a bridge in force: it hears of each change of any table, and puts back
// what is missing.
type guard struct {
	rules
	log     *slog.Logger
	hears   *netlink.Conn
	changes chan struct{}
	closing chan struct{}
	closed  sync.Once // a bridge may be closed twice
	all     sync.WaitGroup
}

const (
	settleTime = 50 * time.Millisecond // for a firewall that loads its rules
	againAfter = time.Second           // what the kernel has refused
)

// openGuard writes the rules and guards them.
func openGuard(r rules, log *slog.Logger) (_ *guard, err error) {
	g := &guard{rules: r, log: log, changes: make(chan struct{}, 1), closing: make(chan struct{})}
	if g.hears, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		return nil, err
	}
	if err := errors.Join(g.hears.JoinGroup(unix.NFNLGRP_NFTABLES), r.write(),
		g.putBack()); err != nil {
		g.hears.Close()
		return nil, err
	}
	g.all.Go(g.hear)
	g.all.Go(g.keep)
	return g, nil
}

// hear tells of changes until the guard is closed.
func (g *guard) hear() {
	for {
		// A message that was lost was a change, too.
		if _, err := g.hears.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		g.look()
	}
}

// look has the guard look whether something is missing.
func (g *guard) look() {
	select {
	case g.changes <- struct{}{}:
	default:
	}
}

func (g *guard) keep() {
	for {
		select {
		case <-g.closing:
			return
		case <-g.changes:
		}
		time.Sleep(settleTime)
		if err := g.putBack(); err != nil {
			g.log.Error("the rules of the bridge are not in force", "bridge", g.Name, "err", err)
			g.again(g.look)
		}
	}
}

// again calls do after a while, unless the guard is closed by then.
func (g *guard) again(do func()) {
	g.all.Go(func() {
		select {
		case <-g.closing:
		case <-time.After(againAfter):
			do()
		}
	})
}

// putBack writes what is missing. Where nothing is, it changes nothing.
func (g *guard) putBack() error {
	g.writes.Lock()
	defer g.writes.Unlock()
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	if !g.whole(conn) {
		g.log.Warn("somebody has removed the rules of the bridge; they are put back",
			"bridge", g.Name)
		if err := g.write(); err != nil {
			return err
		}
	}
	return g.pass(conn)
}

func (g *guard) close() {
	g.closed.Do(func() { close(g.closing) })
	g.hears.Close()
	g.all.Wait()
}
