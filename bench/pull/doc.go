// Package pull compares ways to get a container image onto a cold node: fastiov's own, and
// containerd's.
//
//	orders: image, bandwidth, CPUs, round, arms in turn
//	  └▶ a registry on the loopback serves the image, as fast as the order says
//	       └▶ a receiver, a process with an empty disk, pulls it until it can be mounted
//	            └▶ a line a pull: time, stages, CPU time, peak memory, bytes kept and written
//
// Every receiver verifies the digest of each layer as it is sent and as it is unpacked. A receiver
// is cold but not new: it has pulled another image before, so its process is there.
package pull
