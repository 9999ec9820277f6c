package pool

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

// state holds all that the owner decides about: nodes with their sandboxes, and namespaces with
// their waiting jobs. Events change it (events.go), decide reads it (decide.go), apply does what
// was decided (apply.go). After a change, file puts what changed where decide will look for it, so
// that no decision has to search.
type state struct {
	policy     Policy
	pauseAfter time.Duration // 0: never; a group may have its own
	patience   time.Duration // how long a job may be overtaken
	mostQueued int           // per namespace
	lostAfter  time.Duration // how long a node may be out of reach and keep its sandboxes

	nodes    []*node
	spaces   map[string]*space
	groups   map[key]*group
	named    map[string]map[key]*group // the same, by name
	classes  []*class                  // those with waiters, the least memory first
	stems    []*stem
	queue    chain[*waiter] // all of them, by arrival
	servable chain[*group]  // have a waiter, and a sandbox with a slot for it
	full     chain[*group]  // have a waiter, no slot, and as many sandboxes as they may
	finished chain[*box]    // idle, and to end
	lacking  []*size        // groups that have less sandboxes than they keep, the least first
	alarms   alarms
	closed   bool
	newID    func() string
	see      func(Sandbox) // nil: nobody is told
	arrivals uint64
	counts   map[Kind]uint64
	left     map[[2]string]Left // by node and id, of nodes that have not been met yet
}

// A room counts sandboxes and memory of a node, all of it or what is free.
type room struct {
	sandboxes int
	memory    int // MiB
}

// unbounded is more than any node has: of what the pool knows no bound of, the node itself queues
// or refuses.
const unbounded = math.MaxInt32

func (r room) less(memory int) room { return room{r.sandboxes - 1, r.memory - memory} }
func (r room) more(memory int) room { return room{r.sandboxes + 1, r.memory + memory} }
func (r room) fits(memory int) bool { return r.sandboxes >= 1 && r.memory >= memory }

// A node is one agent as the pool sees it.
type node struct {
	name     string
	capacity room
	overhead int // MiB that a sandbox takes beside its own
	hasVFs   bool
	images   map[string]bool // nil: every image is as near as any other
	up       bool            // in reach, and takes sandboxes
	draining bool
	down     string // why it is out of reach
	silent   bool   // it did not answer the last look
	free     room   // of capacity
	idle     idlers
	busy     chain[*box]
	endless  chain[*box]     // busy, too, with a lease that may not end by itself
	boxes    map[string]*box // by id
	claim    *claim
	orphans  []string // sandboxes that may live on there though the pool has given them up
	alarm    alarm    // while it is out of reach: when its sandboxes are given up
	to       *remote  // how it is spoken to; nothing that decides asks it anything
}

// avail returns what a job could get at once: what is free, and what idles, without what is
// claimed.
func (n *node) avail() room { return n.idle.and(n.spare()) }

// spare returns what is free, without that part of it which a claim counts on.
func (n *node) spare() room {
	c := n.claim
	if c == nil {
		return n.free
	}
	return room{
		sandboxes: n.free.sandboxes - max(1-c.coming.sandboxes, 0),
		memory:    n.free.memory - max(c.group.memory+n.overhead-c.coming.memory, 0),
	}
}

// Idlers are a node's idle sandboxes, as they are evicted: stem cells, then what is only kept, then
// the others; of each sort the longest idle first.
type idlers struct {
	stems, kept, others chain[*box]
	memory              int // MiB
}

// sort returns the chain of those that are like b.
func (i *idlers) sort(b *box) *chain[*box] {
	switch {
	case b.group == nil:
		return &i.stems
	case b.kept:
		return &i.kept
	}
	return &i.others
}

func (i *idlers) has(b *box) bool {
	return b.place.in == &i.stems || b.place.in == &i.kept || b.place.in == &i.others
}

func (i *idlers) first() *box {
	for _, c := range []*chain[*box]{&i.stems, &i.kept, &i.others} {
		if c.n > 0 {
			return c.first.of
		}
	}
	return nil
}

// and returns what is free if all of them end.
func (i *idlers) and(free room) room {
	return room{free.sandboxes + i.stems.n + i.kept.n + i.others.n, free.memory + i.memory}
}

// A claim is room on a node that is kept for a group whose job has waited too long, and the
// sandboxes that end to make it.
type claim struct {
	group  *group
	boxes  []*box
	coming room // what those leave that have not ended yet
}

type phase string

const (
	starting phase = "starting" // or, having been a stem cell, being given its function
	running  phase = "running"
	idle     phase = "idle"
	paused   phase = "paused"
	gone     phase = "gone"
)

var phases = []phase{starting, running, idle, paused}

var allowed = map[phase][]phase{
	starting: {running, idle, gone},
	running:  {idle, gone},
	idle:     {starting, running, paused, gone},
	paused:   {running, gone},
}

// A box is a sandbox as the pool sees it.
type box struct {
	id      string
	node    *node
	group   *group // nil: a stem cell
	stem    *stem  // what it was started as, if it was a stem cell
	memory  int    // MiB, with the node's overhead
	slots   int
	used    int
	phase   phase
	since   time.Time // of the phase
	asked   time.Time // its start began then
	begun   time.Time // and was over
	retired bool      // it takes no more jobs, and ends with those it has
	claimed bool      // the same, as long as its room is claimed
	ended   bool      // its node has told its end, though its start is not over here
	rests   bool      // whoever probes it says that it is not to be used now
	failed  error     // why it has ended, if nobody wanted that
	kept    bool      // nobody has used it since it was started, or idled for too long, to be kept
	holds   bool      // its memory is counted as its namespace's
	counts  bool      // it is counted as one of its group that lives on
	serves  bool      // and as one that is started and does not rest
	place   link[*box]
	open    link[*box]
	mine    link[*box]
	alarm   alarm
	ready   chan struct{}  // closed when its start is over
	start   outcome        // how it was; to be read after ready
	pausing pausing        // its last
	endless chain[*waiter] // who hold leases of it that may not end by themselves
	wake    *wake          // its last resuming; nil: it was never paused

	answers    atomic.Uint64 // calls
	unanswered atomic.Int32  // calls in a row
}

func (b *box) move(to phase, now time.Time) {
	if !slices.Contains(allowed[b.phase], to) {
		panic(fmt.Sprintf("pool: sandbox %s cannot go from %s to %s", b.id, b.phase, to))
	}
	b.phase, b.since = to, now
}

func (b *box) idles() bool { return b.phase == idle || b.phase == paused }

// A key names a group: one action at one revision, as one namespace calls it. Its sandboxes are
// alike.
type key struct {
	namespace, name string
	memory          int
}

// A group has sandboxes that are alike, and jobs that wait for one of them.
type group struct {
	key
	space   *space
	class   *class // in which it stands in line; nil: it does not
	image   string
	ofStem  bool // a stem cell of the image does
	slots   int
	bounds  Bounds
	again   func() (*api.StartRequest, error) // of the last demand; nil: none starts ahead
	judge   func(*api.StartReply) error       // Demand.Ready, like again
	waiting chain[*waiter]
	open    chain[*box] // ready, with a free slot; the last to have one is the last
	next    *link[*box] // of these: whose turn is next; see whoseTurn
	round   int         // so many had theirs since it was the last one's
	warming chain[*box] // starting, with a free slot
	resting chain[*box] // with a free slot that nobody gets now
	members chain[*box]
	live    int                               // of them, those that take jobs now or will again
	ready   int                               // of those, the ones that are started
	level   int                               // where it is scaled: so many there are to be
	wants   int                               // so many are to be kept, see Keep
	least   int                               // of them, those that its namespace may keep
	fresh   func() (*api.StartRequest, error) // starts one that is kept
	keeper  link[*group]                      // it wants some
	short   link[*group]                      // it keeps less than it wants
	lacks   link[*group]                      // it has less than it keeps
	tries   attempts                          // to start one that is kept
	retry   alarm                             // for the next of them
	jobs    int                               // under way
	claim   *node
	idles   *Idles    // nil where the policy learns nothing
	window  Window    // the policy's, as of the last end
	ended   time.Time // when the last of its jobs did
	turn    link[*group]
	starves time.Time // since when, where it is among those that do
	inLine  link[*group]
	alarm   alarm // for its next pre-warming, or to be forgotten
}

// A space is a namespace.
type space struct {
	name    string
	held    int // MiB in its busy sandboxes
	most    int // so many its groups may keep
	least   int // so many they keep
	keepers chain[*group]
	short   chain[*group]
	waiting chain[*waiter]
	lines   []*line
	groups  int
}

// A class is all jobs that a start of the same size would serve; of those for whose image there are
// stem cells each has its own.
type class struct {
	memory   int
	stem     *stem
	lines    lines         // a heap: the namespace that holds least is first
	starving chain[*group] // have an aged waiter, and no sandbox that will ever have a slot for it
}

// A size is the groups that lack sandboxes of the same size.
type size struct {
	memory int
	groups chain[*group]
	turn   uint64 // so many had been started to be kept when it had its last, or began to lack
}

// A line is a namespace's groups in a class. They take turns.
type line struct {
	space  *space
	class  *class
	groups chain[*group]
	pos    int
}

// full reports whether the group has as many sandboxes as it may.
func (g *group) full() bool {
	return g.bounds.Max > 0 && g.members.n >= g.bounds.Max ||
		g.bounds.Scaled && g.live >= max(g.level, 1)
}

// started returns how many of the group's sandboxes are started, and take jobs now or will again.
func (g *group) started() (n int) {
	g.members.all(func(b *box) bool {
		if b.counts && b.phase != starting {
			n++
		}
		return true
	})
	return n
}

// A waiter is a job without a sandbox.
type waiter struct {
	group    *group
	arrived  time.Time
	deadline time.Time
	number   uint64     // of arrival
	failed   *elsewhere // why its last sandbox did not serve it
	aged     bool       // it has waited for longer than patience
	inGroup  link[*waiter]
	inSpace  link[*waiter]
	inQueue  link[*waiter] // then, if it is endless, of its box
	alarm    alarm
	endless  bool // its lease may not end by itself
	lease    *Lease
}

// A stem is a kind of stem cell and how many of it there are to be on each node.
type stem struct {
	StemCell
	target int
	cold   int // starts in this window that a stem cell would have spared
	idle   chain[*box]
	on     map[*node]int
	tries  attempts
	alarm  alarm
}

// file puts a box where it belongs after any change of it or its node.
func (s *state) file(b *box, now time.Time) {
	n, g := b.node, b.group
	ends := b.retired || b.claimed || s.closed || n.draining
	var place *chain[*box]
	switch {
	case b.phase == gone:
	case !b.idles() && b.endless.n > 0:
		place = &n.endless
	case !b.idles():
		place = &n.busy
	case ends:
		place = &s.finished
	default:
		place = n.idle.sort(b)
	}
	if n.idle.has(b) {
		n.idle.memory -= b.memory
	}
	b.place.join(place)
	if n.idle.has(b) {
		n.idle.memory += b.memory
	}

	takes := b.phase != gone && !ends && n.up
	var open *chain[*box]
	switch {
	case !takes || b.used == b.slots:
	case g == nil && b.phase == idle:
		open = &b.stem.idle
	case g == nil:
	case b.rests:
		open = &g.resting
	case b.phase == starting:
		open = &g.warming
	default:
		open = &g.open
	}
	b.open.join(open)
	due := s.boxDue(b)
	sooner := due.Before(b.alarm.at) && !due.IsZero()
	if b.phase == gone || b.alarm.pos == 0 || sooner {
		s.alarms.set(&b.alarm, due) // going off too early costs less than being put off at each use
	}
	if g == nil {
		return
	}
	more := takes && !b.counts
	s.count(b, takes)
	if g.bounds.Scaled && takes && g.live > g.level {
		if b.idles() && (!more || g.resting.n == 0) {
			b.retired = true
			s.file(b, now)
			return
		}
		if more {
			s.shrink(g, now)
		}
	}
	s.fileGroup(g, now)
}

// count keeps the sums of a box's group and namespace.
func (s *state) count(b *box, takes bool) {
	g := b.group
	if takes != b.counts {
		b.counts = takes
		g.live += sign(takes)
	}
	if serves := takes && !b.rests && b.phase != starting; serves != b.serves {
		b.serves = serves
		g.ready += sign(serves)
	}
	if holds := b.phase == starting || b.phase == running; holds != b.holds {
		b.holds = holds
		g.space.held += sign(holds) * b.memory
		for _, l := range g.space.lines {
			l.class.lines.fix(l)
		}
	}
}

func sign(plus bool) int {
	if plus {
		return 1
	}
	return -1
}

// fileGroup puts a group where it belongs after any change of its waiters or boxes.
func (s *state) fileGroup(g *group, now time.Time) {
	waits := g.waiting.n > 0
	servable := waits && (g.open.n > 0 || g.warming.n > 0 && !g.bounds.Scaled)
	// who is served at once need not stand in line
	stands := waits && !servable && !g.full() && (g.live == 0 || !g.rests(now))
	s.fileLine(g, stands)
	switch {
	case servable:
		g.turn.join(&s.servable)
	case waits && !stands:
		g.turn.join(&s.full)
	case stands && g.live == 0 && g.claim == nil && g.waiting.first.of.aged:
		g.starve(now)
	default:
		g.turn.leave()
	}
	if waits && !servable {
		s.setAlarms(g)
	}
	s.fileLack(g, g.live < g.least && !g.full() && !g.rests(now))
	if keeps := stands || servable && !g.full(); !keeps && g.claim != nil {
		s.dropClaim(g.claim, now)
	}
	if g.jobs == 0 && g.members.n == 0 && !waits && g.wants == 0 {
		s.forget(g)
	}
}

// setAlarms has every waiter of a group looked at in time. Those that come while there is a slot
// for them get none: they are gone with the next decision. So only the ends of the chain can be
// without.
func (s *state) setAlarms(g *group) {
	for l := g.waiting.last; l != nil && l.of.alarm.pos == 0; l = l.prev {
		s.alarms.set(&l.of.alarm, s.waiterDue(l.of))
	}
	for l := g.waiting.first; l.of.alarm.pos == 0; l = l.next {
		s.alarms.set(&l.of.alarm, s.waiterDue(l.of))
	}
}

// forget drops a group that nothing is left of, once what was learnt of it is worth no more.
func (s *state) forget(g *group) {
	if g.alarm.pos != 0 || s.groups[g.key] != g {
		return
	}
	delete(s.groups, g.key)
	if delete(s.named[g.name], g.key); len(s.named[g.name]) == 0 {
		delete(s.named, g.name)
	}
	if g.space.groups--; g.space.groups == 0 {
		delete(s.spaces, g.space.name)
	}
}

// dropClaim gives up a claim; the sandboxes that were to end for it go on.
func (s *state) dropClaim(n *node, now time.Time) {
	c := n.claim
	n.claim, c.group.claim = nil, nil
	for _, b := range c.boxes {
		if b.claimed = false; b.phase != gone {
			s.file(b, now)
		}
	}
	s.fileGroup(c.group, now)
}

// next is when decide may have something new to say though nothing happens; zero if never.
func (s *state) next() time.Time {
	if len(s.alarms) == 0 {
		return time.Time{}
	}
	return s.alarms[0].at
}

// empty reports whether nothing is left of a closed pool.
func (s *state) empty() bool {
	for _, n := range s.nodes {
		if len(n.boxes) > 0 {
			return false
		}
	}
	return s.queue.n == 0
}
