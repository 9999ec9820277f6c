// Package pool gives each job a sandbox: one that is warm, else one that is on its way, else one started for it, else it waits its turn.
//
//	               ┌──────────── reuse ─────────┐
//	               ▼                            │
//	starting ─▶ running ─ the last job is over ─▶ idle ─ after a grace ─▶ paused ─ reuse ─▶ running
//	   │  ▲        │                            │ │                         │
//	   │  └────────┼── a stem cell is taken ────┼─┘                         │
//	   └───────────┴────────────▶ gone ◀────────┴── keep-alive, evicted ────┘
//
// A group is one action at one revision, called by one namespace: its sandboxes are alike. A sandbox runs as many jobs at once as the
// group's concurrency says. A job whose start is under way keeps that start, so that N jobs at once on a cold group start as many
// sandboxes as it takes side by side; a job that waits takes the first slot that is free.
//
// Whom nobody holds up: a waiter of one group stands in no other's way. Where room is short, it goes to the namespace that holds least
// (lines.go); who is overtaken for too long has room made for him (claim.go); how long a sandbox idles, a policy says (keepalive.go).
//
// What to do is decided by one function of (state, now), decide, one step at a time; apply does the step to the state. Whoever holds the
// pool's lock is the owner: he takes in an event, and decides and applies until nothing is left to decide. Whatever talks to a node
// does so outside of the lock. The state keeps everything where the next decision will look for it, so a decision costs the same for
// ten sandboxes and for ten thousand.
//
// A node that does not answer gets nothing new, and after a while its sandboxes count as lost; one that drains loses its own as they
// idle. The nodes are a list that does not change.
//
//	lease.go      what a caller does: Submit, Do; and a job's way once it has a sandbox
//	pool.go       the owner, and what its steps do outside
//	workers.go    the goroutines that jobs go on in
//	remote.go     nodes: calls, and looking at what they have
//	state.go      all that is known; file puts it in its place
//	events.go     what happens to it
//	decide.go     what is to be done: decide;  lines.go, claim.go, stem.go: its parts
//	apply.go      the doing
//	keepalive.go  policies
//	why.go        what a job waits for, and what the pool shows
package pool
