// Package agent runs the process that owns a node. It starts, runs and ends sandboxes for clients
// of the node API, and after a restart takes over what its predecessor left.
//
// A sandbox is known here from the moment a start is accepted until nothing of it is left:
//
//	starting → ready ⇄ paused → ending → (gone)          adopting → ready, or ending
//
// Whatever ends a sandbox, a Stop, a failed start, a VMM that dies or a VF error, the same release
// follows: its cgroup kills the VMM, the run directory is removed, memory and NIC are given back.
package agent
