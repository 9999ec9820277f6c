// Package pool leases sandboxes: a demand gets one that is warm, else one that is on its way, else
// one started for it, else it waits its turn.
//
//	               ┌──────────── reuse ─────────┐
//	               ▼                            │
//	starting ─▶ running ─ no lease is left ──▶ idle ─ after a grace ─▶ paused ─ reuse ─▶ running
//	   │  ▲        │                            │ │                         │
//	   │  └────────┼── a stem cell is taken ────┼─┘                         │
//	   └───────────┴────────────▶ gone ◀────────┴── keep-alive, evicted ────┘
//
// The pool knows nothing of what is run. Whoever acquires a lease calls the sandbox through it, and
// gives it back: released, with the word whether the sandbox is good for another, or retried, where
// nothing reached the runtime and another sandbox should serve. When a sandbox is ready, its demand
// says.
//
// A group is one function at one revision, called by one namespace: its sandboxes are alike. A
// sandbox has as many leases at once as the group's concurrency says. A demand whose start is
// under way keeps that start, so N demands at once on a cold group start as many sandboxes as they
// need side by side; a demand that waits takes the first slot that is free. A group may bound how
// many sandboxes it has, and how long they idle; where it does not, the pool's configuration does.
//
// A demand that waits never delays another group. Where room is short, the namespace that holds
// least is served next (lines.go). Room is made for a demand that was overtaken for too long
// (claim.go): sandboxes of those who hold most end with what they run. A lease that may last for
// hours says so, as endless; it is told to end then.
//
// decide, a function of (state, now), says what to do, one step at a time; apply does the step to
// the state. The holder of the pool's lock is the owner: it takes in an event, then decides and
// applies until nothing is left to decide. Calls to a node happen outside of the lock. The state
// keeps everything where the next decision looks for it, so a decision costs the same for ten
// sandboxes and for ten thousand.
//
// A node that does not answer gets nothing new, and after a while its sandboxes count as lost; one
// that drains loses its sandboxes as they idle. The list of nodes does not change.
//
//	lease.go      what a caller does: Acquire, Release, Retry; and how its sandbox gets ready
//	pool.go       the owner, and what its steps do outside
//	workers.go    the goroutines in which leases are used
//	remote.go     nodes: calls, and looking at what they have;  ends.go: what ends there
//	tell.go       what others hear of sandboxes;  probed.go: what those who probe them say
//	state.go      all that is known; file puts it in its place, in a list of chain.go
//	events.go     what happens to it
//	decide.go     what is to be done: decide;  lines.go, claim.go, stem.go: its parts
//	apply.go      the doing;  keep.go: how many a group is to have
//	keepalive.go  policies
//	why.go        what a demand waits for, and what the pool shows;  collect.go: to Prometheus
//	left.go       what a pool leaves warm for the next
package pool
