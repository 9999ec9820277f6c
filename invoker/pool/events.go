package pool

import (
	"cmp"
	"errors"
	"iter"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// What happens. Each event leaves the state filed; what follows from it, decide says.

// arrive takes in a demand. again: it had a sandbox that did not serve it, so it goes before those
// that came later.
func (s *state) arrive(w *waiter, d *Demand, again bool, now time.Time) (refused string) {
	g := s.groupOf(d, now)
	if g.space.waiting.n >= s.mostQueued && !again {
		s.counts[Refuse]++
		s.fileGroup(g, now)
		return tooMany(g.space)
	}
	if again {
		w.inGroup.jump(&g.waiting)
		w.inSpace.jump(&g.space.waiting)
		w.inQueue.jump(&s.queue)
	} else {
		s.arrivals++
		w.number = s.arrivals
		w.inGroup.join(&g.waiting)
		w.inSpace.join(&g.space.waiting)
		w.inQueue.join(&s.queue)
	}
	w.group = g
	if !again { // the group of one that comes again may have been retired meanwhile
		g.level = max(g.level, 1)
	}
	s.fileGroup(g, now)
	return ""
}

// waiterDue is when a waiter is to be looked at: when it has been overtaken for too long, and when
// it has waited long enough.
func (s *state) waiterDue(w *waiter) time.Time {
	if aged := w.arrived.Add(s.patience); !w.aged && aged.Before(w.deadline) {
		return aged
	}
	return w.deadline
}

func (w *waiter) init(arrived, deadline time.Time) {
	w.arrived, w.deadline = arrived, deadline
	w.inGroup.of, w.inSpace.of, w.inQueue.of, w.alarm.of = w, w, w, w
}

// leave takes a waiter out of every queue.
func (s *state) leave(w *waiter, now time.Time) {
	w.inGroup.leave()
	w.inSpace.leave()
	w.inQueue.leave()
	s.alarms.set(&w.alarm, time.Time{})
	s.fileGroup(w.group, now)
}

// groupOf returns the group of a demand, which is new where nobody needed it lately. A demand ends
// an idle time.
func (s *state) groupOf(d *Demand, now time.Time) *group {
	g := s.groupLike(d)
	if g.idles != nil {
		g.again, g.judge = d.Again, d.Ready
		if g.jobs == 0 && g.waiting.n == 0 && !g.ended.IsZero() {
			g.idles.add(now.Sub(g.ended))
		}
		s.alarms.set(&g.alarm, time.Time{})
	}
	return g
}

// groupLike returns the group that a demand describes.
func (s *state) groupLike(d *Demand) *group {
	k := key{d.Namespace, d.Group, d.MemoryMiB}
	g := s.groups[k]
	if g == nil {
		g = &group{key: k, space: s.spaces[k.namespace]}
		g.turn.of, g.inLine.of, g.alarm.of, g.retry.of = g, g, g, retrial{g}
		g.keeper.of, g.short.of, g.lacks.of = g, g, g
		if g.space == nil {
			g.space = &space{name: k.namespace}
			s.spaces[k.namespace] = g.space
		}
		g.space.groups++
		s.groups[k] = g
		if s.named[k.name] == nil {
			s.named[k.name] = map[key]*group{}
		}
		s.named[k.name][k] = g
		if s.policy.Remembers() > 0 {
			g.idles = &Idles{}
		}
		g.window = s.policy.Window(g.idles)
	}
	g.image, g.ofStem = d.Image, d.Stem
	g.slots, g.bounds = max(d.Concurrency, 1), d.Bounds
	return g
}

// An outcome says how a start went. With an error and a reply it succeeded, but the sandbox is not
// ready for its demand.
type outcome struct {
	reply   *api.StartReply
	err     error
	unasked bool // the demand could not say what to start, so no node was asked
}

// ofNode reports whether a start failed by its node, which was lost or had no place.
func (o outcome) ofNode() bool {
	var away *elsewhere
	code := status.Code(o.err)
	return errors.As(o.err, &away) || code == codes.Unavailable || code == codes.ResourceExhausted
}

// judged returns the outcome of a start, of which the node says reply and err, and the demand
// whether that is ready.
func judged(reply *api.StartReply, err error, ready func(*api.StartReply) error) outcome {
	if err != nil {
		return outcome{err: err}
	}
	if ready != nil {
		err = ready(reply)
	}
	return outcome{reply: reply, err: err}
}

// started takes in the end of a start. One that failed leaves nothing; who waited for it learns
// that from the box.
func (s *state) started(b *box, how outcome, now time.Time) {
	if b.phase == gone && how.err == nil {
		how = outcome{err: &elsewhere{why: b.node.name + " was given up meanwhile"}}
	}
	b.start = how
	close(b.ready)
	switch {
	case how.err == nil && !b.ended:
		b.begun = now
	case how.err == nil, b.group == nil, b.kept, b.group.bounds.Scaled:
		s.rest(b, how, now)
	}
	switch {
	case b.phase == gone: // its node was lost meanwhile
	case how.err != nil, b.ended:
		s.drop(b, now)
	case b.used == 0:
		b.move(idle, now)
		s.file(b, now)
		s.tell(b)
	default:
		b.move(running, now)
		s.file(b, now)
		s.tell(b)
	}
}

// crashed takes in why a sandbox has ended or is of no use, if nobody wanted that. Soon after its
// start that is as if it had not started; but of one in use a job may be to blame, and while others
// of its group live the program is not.
func (s *state) crashed(b *box, why error, now time.Time) {
	b.failed = cmp.Or(b.failed, why)
	itself := b.used == 0 || b.group.live <= 1
	if b.failed != nil && now.Sub(b.begun) < MostRest && itself {
		s.rest(b, outcome{}, now)
	}
}

// rest has sandboxes like b that no job waits for be started later, as it has failed.
func (s *state) rest(b *box, how outcome, now time.Time) {
	if b.group == nil {
		s.stemFailed(b.stem, how, b.asked, now)
	} else {
		s.keptFailed(b.group, how, b.asked, now)
	}
}

// done takes in that a waiter's slot of a box is free; keep says whether the box is good for
// others.
func (s *state) done(b *box, w *waiter, keep bool, now time.Time) {
	g := b.group
	b.kept = false
	w.inQueue.leave() // of those that are endless
	g.jobs--
	g.ended = now
	if g.jobs == 0 && g.idles != nil {
		s.learn(g, now)
	}
	b.used--
	if b.phase == gone {
		s.fileGroup(g, now)
		return
	}
	b.retired = b.retired || !keep
	if b.used == 0 && b.phase == running {
		b.move(idle, now)
	}
	s.file(b, now)
}

// learn asks the policy what is to become of a function that has just ended.
func (s *state) learn(g *group, now time.Time) {
	g.window = s.policy.Window(g.idles)
	if g.waiting.n > 0 || g.bounds.KeepAlive > 0 || g.bounds.Scaled {
		return
	}
	if g.window.PreWarm == 0 {
		s.alarms.set(&g.alarm, now.Add(s.policy.Remembers()))
		return
	}
	s.alarms.set(&g.alarm, now.Add(g.window.PreWarm))
	g.members.all(func(b *box) bool {
		if b.counts && g.live <= g.least {
			return false
		}
		b.retired = true
		s.file(b, now)
		return true
	})
}

// retire ends the sandboxes of some groups, the busy ones after what they run. None is kept.
func (s *state) retire(groups iter.Seq[*group], now time.Time) {
	for g := range groups {
		g.again, g.level = nil, 0
		s.want(g, 0, now)
		g.members.all(func(b *box) bool {
			b.retired = true
			s.file(b, now)
			return true
		})
		s.fileGroup(g, now)
	}
}

// A view holds what a node said of itself.
type view struct {
	capacity room
	overhead int
	hasVFs   bool
	images   map[string]bool
	draining bool
}

// looked takes in what a node said of itself.
func (s *state) looked(n *node, v view, now time.Time) {
	n.free.sandboxes += v.capacity.sandboxes - n.capacity.sandboxes
	n.free.memory += v.capacity.memory - n.capacity.memory
	n.capacity, n.overhead, n.hasVFs, n.images = v.capacity, v.overhead, v.hasVFs, v.images
	n.down, n.silent = "", false
	s.alarms.set(&n.alarm, time.Time{})
	s.turnNode(n, !v.draining, v.draining, now)
}

// silent takes in that a node did not answer a look. Once may be its machine's trouble: whether it
// lives is asked again, and unless it does not answer then either nothing changes.
func (s *state) silent(n *node, why string, now time.Time) {
	if n.silent || !n.up {
		s.unreached(n, why, now)
	}
	n.silent = true
}

// unreached takes in that a node did not answer. It gets nothing new; if it stays away its
// sandboxes are given up.
func (s *state) unreached(n *node, why string, now time.Time) {
	n.down = why
	if n.alarm.pos == 0 && len(n.boxes) > 0 {
		s.alarms.set(&n.alarm, now.Add(s.lostAfter))
	}
	s.turnNode(n, false, n.draining, now)
}

func (s *state) turnNode(n *node, up, draining bool, now time.Time) {
	if n.up == up && n.draining == draining {
		return
	}
	n.up, n.draining = up, draining
	s.eachBox(n, func(b *box) { s.file(b, now) })
}

func (s *state) eachBox(n *node, visit func(*box)) {
	mine := func(b *box) bool {
		if b.node == n {
			visit(b)
		}
		return true
	}
	var all []*box // visiting may move them from chain to chain
	for _, c := range []*chain[*box]{
		&n.busy, &n.endless, &n.idle.stems, &n.idle.kept, &n.idle.others, &s.finished,
	} {
		c.all(func(b *box) bool { all = append(all, b); return true })
	}
	for _, b := range all {
		mine(b)
	}
}

// close has everybody refused and every sandbox ended.
func (s *state) close(now time.Time) {
	s.closed = true
	for _, n := range s.nodes {
		s.eachBox(n, func(b *box) { s.file(b, now) })
	}
}
