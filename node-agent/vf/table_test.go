package vf

import (
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestMoves(t *testing.T) {
	// Written out once more, as a reader would draw it: a change of the table must be meant.
	want := "unbound>preparing unbound>gone preparing>idle preparing>quarantined preparing>gone " +
		"idle>leased idle>resetting idle>preparing idle>gone leased>resetting leased>preparing leased>gone " +
		"resetting>idle resetting>quarantined resetting>gone " +
		"quarantined>preparing quarantined>gone gone>unbound"
	for _, from := range States {
		for _, to := range States {
			v := &function{bdf: "0000:01:10.0", state: from, since: epoch,
				log: slog.New(slog.NewTextHandler(io.Discard, nil))}
			legal := slices.Contains(strings.Fields(want), string(from)+">"+string(to))
			moved := func() (moved bool) {
				defer func() { moved = recover() == nil }()
				v.move(to, "why", epoch.Add(time.Second))
				return
			}()
			switch {
			case moved != legal:
				t.Errorf("%s → %s: moved is %t", from, to, moved)
			case moved &&
				(v.state != to || v.reason != "why" || !v.since.Equal(epoch.Add(time.Second))):
				t.Errorf("%s → %s left %+v", from, to, v)
			case !moved && v.state != from:
				t.Errorf("a refused move changed the state to %s", v.state)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	up, down := &physical{bdf: "0000:01:00.0", linkUp: true},
		&physical{bdf: "0000:02:00.0", netdev: "eth2"}
	at := func(bdf string, pf *physical, s State, minute int) *function {
		return &function{bdf: bdf, pf: pf, state: s, home: VFIO,
			since: epoch.Add(time.Duration(minute) * time.Minute), reason: "reset: i/o error"}
	}
	for _, c := range []struct {
		name string
		vfs  []*function
		want string
		err  error
		says string
	}{
		{"longest idle", []*function{at("a", up, Idle, 3), at("b", up, Idle, 1), at("c", up, Idle, 2)}, "b", nil, ""},
		{"only idle ones", []*function{at("a", up, Leased, 0), at("b", up, Resetting, 0), at("c", up, Idle, 9)}, "c", nil, ""},
		{"not on a dead link", []*function{at("a", down, Idle, 0), at("b", up, Idle, 5)}, "b", nil, ""},
		{"only dead links", []*function{at("a", down, Idle, 0), at("b", up, Leased, 5)}, "", ErrLinkDown, "PF eth2 (0000:02:00.0) has no carrier"},
		{"none", []*function{at("a", up, Leased, 0), at("b", up, Leased, 0), at("c", up, Quarantined, 0)}, "", ErrEmpty,
			"no idle VF: 3 VFs: 2 leased, 1 quarantined; c: reset: i/o error"},
	} {
		v, err := choose(c.vfs, Want{Driver: VFIO})
		if c.err != nil {
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %v saying %q", c.name, err, c.err, c.says)
			}
			continue
		}
		if err != nil || v.bdf != c.want {
			t.Errorf("%s: chose %v, %v", c.name, v, err)
		}
	}
}

func TestRetryAt(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: time.Second, 1: time.Second,
		2: 2 * time.Second, 5: 16 * time.Second, 9: 256 * time.Second,
		10: 5 * time.Minute, 1000: 5 * time.Minute} {
		if got := retryAt(failures, epoch).Sub(epoch); got != want {
			t.Errorf("after %d failures it waits %s, want %s", failures, got, want)
		}
	}
}

func TestMAC(t *testing.T) {
	seen := map[string]bool{}
	for _, node := range []string{"one", "two"} {
		for _, bdf := range []string{"0000:01:10.0", "0000:01:10.1", "0001:01:10.0"} {
			mac, err := Template{MACPrefix: "02:fa"}.mac(node, bdf)
			again, _ := Template{MACPrefix: "02:fa"}.mac(node, bdf)
			if err != nil || mac != again || !strings.HasPrefix(mac, "02:fa:") || len(mac) != 17 ||
				seen[mac] {
				t.Errorf("%s on %s: %s, then %s (%v)", bdf, node, mac, again, err)
			}
			seen[mac] = true
		}
	}
	for _, prefix := range []string{"", "00:fa", "03:fa", "02:", "02:fa:01:02", "nonsense"} {
		if _, err := (Template{MACPrefix: prefix}).mac("", ""); err == nil {
			t.Errorf("prefix %q was accepted", prefix)
		}
	}
}
