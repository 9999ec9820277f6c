//go:build scon

package scon

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// A question with its answer makes no entries, in either direction: they would fill the container's
// share.
func TestAQuestionAndItsAnswerMakeNoEntry(t *testing.T) {
	w := wire(t)
	for n := range uint16(10) {
		f := &flow{port: 20001 + n, published: n%2 == 1}
		began := time.Now()
		w.pass(f, !f.published, shape{size: 10})
		w.pass(f, f.published, shape{size: 10})
		if entries := len(w.entries()); entries > 0 && time.Since(began) < time.Second/8 {
			t.Fatalf("%+v made %d entries", f, entries)
		}
		w.empty()
	}
}

// empty removes all entries.
func (w *wired) empty() {
	w.t.Helper()
	for _, key := range w.entries() {
		if err := w.s.programs.Conentries.Delete(key); err != nil {
			w.t.Fatal(err)
		}
	}
}

// A container that has asked once, and sent nothing else, gets a stream by the express path.
func TestAStreamAfterOneQuestion(t *testing.T) {
	w := wire(t)
	f := &flow{port: 20001}
	inward := func() bool { _, is := w.pass(f, false, shape{size: 10}); return is }
	w.pass(f, true, shape{size: 10})
	inward()
	time.Sleep(young)
	inward()
	if !w.oneOfFive(inward) {
		t.Errorf("the stream is regular: %v", w.s.Counts())
	}
}

// The memory of a flow's entry may be another's when it is read: no packet goes by that.
func TestAnEntryOfAnotherFlowIsNotFollowed(t *testing.T) {
	w := wire(t)
	mine, other := w.established(&flow{port: 20001}), w.established(&flow{port: 20002})
	all := map[uint16]programConentry{}
	var keys []programFlow
	var key programFlow
	var e programConentry
	for each := w.s.programs.Conentries.Iterate(); each.Next(&key, &e); {
		if e.Neighbour == 0 { // inward, by the port that the flow has outside
			all[port(key.ToPort)] = e
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		if port(key.ToPort) == mine.port {
			e = all[other.port]
			if err := w.s.programs.Conentries.Update(key, e, ebpf.UpdateExist); err != nil {
				t.Fatal(err)
			}
		}
	}
	out, express := w.pass(mine, false, shape{size: 10})
	if express || len(out) != 1 || binary.BigEndian.Uint16(out[0][14+20+2:]) != mine.port {
		t.Errorf("express %v, %x came out", express, out)
	}
	time.Sleep(leaseAndMore)
	w.wantExpress(mine, true)
}

// A device that is moved to another network namespace takes its programs along: there, no entry
// holds, even where that one's rules and routes have the same generations.
func TestAnotherNamespaceHasNoEntries(t *testing.T) {
	w := wire(t)
	w.established(&flow{port: 20001})
	view, err := Open(w.s.Records, w.s.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	w.s.Close() // nobody permits anything else meanwhile
	elsewhere := newPlace(t)
	elsewhere.run(t, "nft add table ip other")
	entries, err := view.table(programMapConentries)
	if err != nil {
		t.Fatal(err)
	}
	defer entries.Close()
	permits, err := view.table(programVarPermits)
	if err != nil {
		t.Fatal(err)
	}
	defer permits.Close()
	for where, want := range map[place]string{{}: "express", elsewhere: "connection"} {
		var g programGeneration
		where.do(t, func() error { return view.run(programProgGenerations, &g) })
		if err := permits.Put(uint32(0), programPermit{Established: g.Rules, Fresh: g.Rules,
			Share: atMost}); err != nil {
			t.Fatal(err)
		}
		var key programFlow
		var e programConentry
		var keys []programFlow
		for each := entries.Iterate(); each.Next(&key, &e); {
			keys = append(keys, key)
		}
		if len(keys) != 2 {
			t.Fatalf("%d entries", len(keys))
		}
		for _, key := range keys {
			if err := entries.Lookup(key, &e); err != nil {
				t.Fatal(err)
			}
			e.Rules, e.Routes = g.Rules, g.Routes
			e.Until += 60 * jiffies(time.Second) << 24
			if err := entries.Put(key, e); err != nil {
				t.Fatal(err)
			}
			q := programQuestion{Flow: key}
			where.do(t, func() error { return view.run(programProgWhy, &q) })
			if Paths[q.Reason] != want {
				t.Errorf("%+v: %s, want %s", where, Paths[q.Reason], want)
			}
		}
	}
}
