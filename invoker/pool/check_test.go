package pool

import "math"

// check compares the state with what can be counted from nothing but the jobs and the sandboxes.
func (w *world) check() {
	w.checkSums()
	w.checkWaiting()
	if next := w.s.next(); !next.IsZero() && !next.After(w.now) {
		w.fail("the next decision is due at %s, now is %s: the owner would spin", next, w.now)
	}
	for _, sp := range w.s.spaces {
		again := 0
		for _, t := range w.jobs {
			if t.waits() && t.again {
				again++
			}
		}
		if sp.waiting.n > w.s.mostQueued+again {
			w.fail("%d jobs of namespace %s wait", sp.waiting.n, sp.name)
		}
	}
	shown := 0
	for _, n := range w.s.snapshot(w.now).Queue {
		shown += n
	}
	if shown != w.s.queue.n {
		w.fail("%d jobs wait, %d are shown", w.s.queue.n, shown)
	}
}

func (w *world) checkSums() {
	type sum struct{ boxes, memory, idling int }
	nodes, held, live, used := map[*node]sum{}, map[*space]int{}, map[*group]int{}, map[*box]int{}
	ready := map[*group]int{}
	endless := map[*box]int{}
	waiting := 0
	for _, t := range w.jobs {
		if t.waits() {
			waiting++
		} else if !t.over {
			used[t.box]++
			if t.job.Endless {
				endless[t.box]++
			}
		}
	}
	if waiting != w.s.queue.n {
		w.fail("%d jobs wait, %d are in the queue", waiting, w.s.queue.n)
	}
	for _, b := range w.boxes {
		if b.phase == gone {
			continue
		}
		if used[b] != b.used || b.used > b.slots {
			w.fail("%s has %d of %d slots in use, %d jobs are in it",
				b.id, b.used, b.slots, used[b])
		}
		among := b.place.in == &b.node.endless
		if endless[b] != b.endless.n || !b.idles() && (endless[b] > 0) != among {
			w.fail("%s has %d endless leases, %d are known", b.id, endless[b], b.endless.n)
		}
		n := nodes[b.node]
		n.boxes, n.memory = n.boxes+1, n.memory+b.memory
		if b.idles() && b.node.idle.has(b) {
			n.idling += b.memory
		}
		nodes[b.node] = n
		if b.group != nil && !b.idles() {
			held[b.group.space] += b.memory
		}
		if b.takes(w.s) {
			live[b.group]++
			if b.phase != starting && !b.rests {
				ready[b.group]++
			}
		}
	}
	for _, n := range w.s.nodes {
		free := room{n.capacity.sandboxes - nodes[n].boxes, n.capacity.memory - nodes[n].memory}
		if n.free != free || len(n.boxes) != nodes[n].boxes || n.idle.memory != nodes[n].idling {
			w.fail("%s: %+v free, %d sandboxes, %d MiB idle; counted %+v, %+v",
				n.name, n.free, len(n.boxes), n.idle.memory, free, nodes[n])
		}
	}
	named := 0
	for _, groups := range w.s.named {
		named += len(groups)
	}
	if named != len(w.s.groups) {
		w.fail("%d groups have names, of %d", named, len(w.s.groups))
	}
	keeps := map[*space]int{}
	for _, g := range w.s.groups {
		keeps[g.space] += g.least
		if g.least > g.wants || g.least < g.wants && g.space.least < g.space.most {
			w.fail("group %s keeps %d of %d, and its namespace %d of %d",
				g.name, g.least, g.wants, g.space.least, g.space.most)
		}
		starves := g.class != nil && g.live == 0 && g.claim == nil && g.waiting.first.of.aged
		if among := g.class != nil && g.turn.in == &g.class.starving; among != starves {
			w.fail("group %s starves: %t, and is among those that do: %t", g.name, starves, among)
		}
		if g.claim != nil && g.class == nil {
			w.fail("group %s holds a claim, and does not stand in line", g.name)
		}
		if w.s.named[g.name][g.key] != g {
			w.fail("the group %v is not found by its name", g.key)
		}
		if g.bounds.Max > 0 && g.members.n > g.bounds.Max {
			w.fail("group %s has %d sandboxes, and may have %d", g.name, g.members.n, g.bounds.Max)
		}
		w.checkKept(g)
		if w.retired[g.key] && g.level > 0 {
			w.fail("group %s was retired, and is to have %d", g.name, g.level)
		}
		if g.ready != ready[g] {
			w.fail("group %s: %d are ready, counted %d", g.name, g.ready, ready[g])
		}
		if g.bounds.Scaled && g.live > g.level {
			g.members.all(func(b *box) bool {
				if b.idles() && b.takes(w.s) {
					w.fail("%s idles, of %d of group %s that is to have %d",
						b.id, g.live, g.name, g.level)
				}
				return true
			})
		}
		if g.live != live[g] || g.space.held != held[g.space] {
			w.fail("group %s: %d alive and %d MiB held, counted %d and %d",
				g.name, g.live, g.space.held, live[g], held[g.space])
		}
	}
	for _, sp := range w.s.spaces {
		if sp.least != keeps[sp] || sp.least > sp.most {
			w.fail("namespace %s keeps %d of %d, counted %d", sp.name, sp.least, sp.most, keeps[sp])
		}
	}
}

// checkKept checks that a group lacks what it keeps only where there is no free room, or where a
// job waits that could have it some time, or where its last start has failed.
func (w *world) checkKept(g *group) {
	if g.live >= g.least || g.full() || w.s.closed || g.rests(w.now) {
		return
	}
	least := math.MaxInt
	for _, c := range w.s.classes {
		least = min(least, c.memory)
	}
	for _, n := range w.s.nodes {
		if least <= n.capacity.memory-n.overhead {
			continue
		}
		if n.up && n.claim == nil && n.free.fits(g.memory+n.overhead) {
			w.fail("group %s has %d of the %d that it keeps, and %s has room",
				g.name, g.live, g.least, n.name)
		}
	}
}

// takes reports whether a sandbox takes jobs, now or when one of its slots is free.
func (b *box) takes(s *state) bool {
	ends := b.retired || b.claimed || b.node.draining || s.closed
	return b.group != nil && b.phase != gone && b.node.up && !ends
}

// checkWaiting checks that each waiting job has a reason to wait.
func (w *world) checkWaiting() {
	for _, t := range w.jobs {
		if !t.waits() {
			continue
		}
		g := t.w.group
		if t.w.alarm.pos == 0 || t.w.alarm.at.After(t.w.deadline) {
			w.fail("a job of %s waits and nobody would notice its deadline", g.name)
		}
		if !w.now.Before(t.w.deadline) {
			w.fail("a job of %s waits past its deadline", g.name)
		}
		for _, b := range w.boxes {
			stem := b.group == nil && b.phase == idle && b.node.up && !g.full() &&
				g.ofStem && b.stem.Image == g.image && b.stem.MemoryMiB == g.memory
			ready := !b.rests && (b.phase != starting || !g.bounds.Scaled)
			if stem || b.group == g && b.takes(w.s) && b.used < b.slots && ready {
				w.fail("a job of %s waits though %s could take it", g.name, b.id)
			}
		}
		for _, n := range w.s.nodes {
			need := g.memory + n.overhead
			if n.up && n.avail().fits(need) && !g.full() && (g.live == 0 || !g.rests(w.now)) {
				w.fail("a job of %s waits for %d MiB, and %s has %+v to give",
					g.name, need, n.name, n.avail())
			}
		}
	}
	w.checkClaims()
}

// checkClaim checks that something ends for a claim, that nobody uses that, and that it is enough.
func (w *world) checkClaim(n *node) {
	c := n.claim
	if c == nil {
		return
	}
	var coming room
	for _, b := range c.boxes {
		if b.phase == gone {
			continue
		}
		if coming = coming.more(b.memory); b.idles() || b.open.in != nil {
			w.fail("%s idles or takes jobs, and %s counts on its room", b.id, c.group.name)
		}
	}
	if coming != c.coming || coming.sandboxes == 0 {
		w.fail("%s: %+v ends for %s, counted %+v", n.name, c.coming, c.group.name, coming)
	}
	all := room{n.free.sandboxes + coming.sandboxes, n.free.memory + coming.memory}
	if !w.shrunk[n] && !all.fits(c.group.memory+n.overhead) {
		w.fail("%s has %+v for %s when all that ends for it has ended", n.name, all, c.group.name)
	}
}

// checkClaims: of those with nothing that a node could hold, the one who has waited longest has a
// claim.
func (w *world) checkClaims() {
	for _, n := range w.s.nodes {
		w.checkClaim(n)
		g := w.s.starved(n.capacity.memory - n.overhead)
		able := g != nil && n.up && n.capacity.sandboxes >= 1 && n.busy.n+n.endless.n > 0
		if able && n.claim == nil && n.free.sandboxes >= 0 && n.free.memory >= 0 {
			w.fail("a job of %s has waited too long, and %s makes no room for it", g.name, n.name)
		}
	}
}
