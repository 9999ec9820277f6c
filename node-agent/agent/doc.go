// Package agent is the process that owns a node: it starts, runs and ends sandboxes for whoever speaks the node API, and after a
// restart takes over what its predecessor left.
//
// A sandbox is known here from the moment a start is accepted until nothing of it is left:
//
//	starting → ready ⇄ running → ending → (gone)
//	    └────────────────────────→ (gone)
//
// Whatever ends a sandbox, a Stop, a failed start, a VMM that dies or a VF error, the same release follows: VMM gone by cgroup,
// run directory removed, memory and VF given back.
package agent
