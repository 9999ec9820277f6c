// Package pool gives each job a sandbox: a warm one of its group if one idles, else one started for it, else it waits its turn.
//
//	                 ┌──────────── reuse ────────────┐
//	                 ▼                               │
//	starting ──▶ running ── the sandbox may be kept ─▶ idle
//	    │            │                               │
//	    └────────────┴──▶ gone ◀── keep-alive, evicted, retired, pool closed
//
// A group is one action at one revision: its sandboxes are alike. A sandbox runs one job at a time. A job whose start is under way
// keeps that start, so that N jobs at once on a cold group start N sandboxes side by side; a job that waits takes the first that
// idles. Starts are made in order of arrival; one that needs more memory than is free holds up the starts behind it, not the reuses.
//
// The node says how many sandboxes and how much memory it holds; a full pool evicts the longest idle sandbox for a job of another group,
// and without one the job waits here, where a sandbox that idles can reach it. The node's own queue is for what comes back on its own:
// a VF that is being reset.
//
// What to do is decided by one function of (state, now), decide. One goroutine owns the state, applies what was decided, and asks
// again after every event and when the next deadline comes. Whatever talks to the node does so outside of that goroutine.
package pool
