// Package scon sends packets of containers behind a bridge and NAT the express path: past the
// bridge, netfilter and routing, by what these have done to the packet before.
//
//	container ═ port ─ arrive ─┬─ express: rewritten ──────────────────────▶ NIC
//	                           └─ regular: noted ─ bridge, rules, routes ─ compose ─▶ NIC
//
// and the other way by the same two programs, arrive where packets come in and compose where they
// leave, at each port of the bridge and at each uplink (bpf/).
//
// What the kernel does to a packet is learned from that packet: arrive notes it, and compose finds
// the same sk_buff on the same CPU, translated. The difference is a Conentry. It holds for packets
// for which the kernel's answer cannot be another one, and only as long as the kernel's own state
// is the one that it was learned from: arrive reads that for each packet.
//
// For that, the rules may ask for nothing that differs between packets of a connection. The agent's
// side reads them (ruleset.go, paths.go), and permits the express path for the generation that it
// has read (permit.go). It follows ports and containers (ports.go). If it dies, packets go express
// until the rules change, and are regular from then on.
//
// The names are those of the SCON paper: Conentry, Contable (a container's share of Conentries),
// flusher, composer. Its Confilter flag of 1 is an entry that holds, of 0 one that does not; one of
// -1, for packets that are dropped, is not learned: a drop may be due to the state of a connection,
// which the next packet changes.
package scon
