// Package cni is the CNI plugin of fastiov: it gives a container a VF of this node.
//
// The plugin is a small program (cmd/fastiov-cni), because a container runtime starts it twice for
// each container. It parses its configuration (conf.go), asks the agent (wire.go) and writes CNI's
// result (plugin.go). Package attach has the agent's side, which leases the VF and moves it.
//
//	runtime ─ exec, JSON ─▶ fastiov-cni ─ cni.sock: a line each way ─▶ attach ─▶ vf.Pool, netlink
//
// The plugin keeps nothing. The agent's journal says which attachment has which VF. A DEL
// that finds no agent leaves a note, which the next agent reads before it hears anybody.
package cni
