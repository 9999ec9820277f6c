// Package testbed boots a host with SR-IOV on any Linux machine. QEMU emulates an IOMMU with
// interrupt remapping, igb network cards with seven virtual functions each, an NVMe controller with
// up to 127, and nested virtualisation. Inside, the host is a node like any other; starting it
// needs neither KVM nor root.
//
//	machine                                testbed host (10.0.3.15)
//	fastiov testbed run ── ssh, loopback ─► sshd            management, virtio-net
//	state directory/share ──── 9p ────────► /share          binary, images, keys: all that goes in
//	                                                        or comes out
//	10.0.2.2 ◄──────── slirp, pcap ──────── igb PF, VFs     the functions' wire, recorded in
//	                                                        wire0.pcap
//
// A testbed is a directory (see state.go) and one QEMU process. The directory names the process by
// its pid and its start time. Together they name one process even after the pid is used again, so
// nothing here ever signals another process.
//
//		absent ──Up──► booting ──"testbed ready" on the console──► ready ──Down──► absent
//
//	  - Up holds the directory's lock, so two concurrent Ups make one testbed. An Up that fails or
//	    is cancelled ends its QEMU and leaves only the console log.
//	  - Up holds the other end of QEMU's console, so it misses no line, and an end of file there
//	    means that QEMU died: nothing sleeps and nothing polls.
//	  - Down asks the host to power off, then QEMU to quit, then kills it. Each step has a bounded
//	    time, and each is enough.
//
// A test states what it needs and runs in a booted host by Inside; see inside.go.
package testbed
