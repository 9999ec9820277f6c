// Package testbed boots a host with SR-IOV on any Linux machine: QEMU emulates an IOMMU with interrupt remapping, igb network
// cards with seven virtual functions each, an NVMe controller with up to 127, and nested virtualisation. What runs in it is a
// node like any other; what starts it needs neither KVM nor root.
//
//	machine                                testbed host (10.0.3.15)
//	fastiov testbed run ── ssh, loopback ─► sshd            management, virtio-net
//	state directory/share ──── 9p ────────► /share           binary, images, keys: all that goes in or comes out
//	10.0.2.2 ◄──────── slirp, pcap ──────── igb PF, VFs     the wire the functions use, recorded in wire0.pcap
//
// A testbed is a directory (see state.go) and one QEMU process. The directory says which process: its pid and its start time,
// which together name one process even after the pid is used again, so that nothing here ever signals a stranger.
//
//		absent ──Up──► booting ──"testbed ready" on the console──► ready ──Down──► absent
//
//	  - Up holds the directory's lock, so two of them make one testbed. An Up that fails or is cancelled ends the QEMU it started
//	    and leaves the console log only.
//	  - Up holds the other end of QEMU's console, so it misses no line, and the end of file there is the news that QEMU died:
//	    nothing sleeps and nothing polls.
//	  - Down asks the host to power off, then QEMU to quit, then kills it; each step is bounded and each is enough.
//
// Tests say what they need and get a booted host by Inside; see inside.go.
package testbed
