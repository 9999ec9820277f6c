// Package containerd runs sandboxes as containers, by containerd and whatever runtime it has: runc,
// crun, gVisor's runsc and others. A container of runc shares the kernel of the host: it is for
// machines without KVM, and for tenants that trust each other.
//
//	agent ── containerd ── shim ── program
//	  └ pidfd, FIFOs, loopback of the network namespace ──┘
//
// The root is the same EROFS image that a microVM boots, mounted once for all sandboxes of it. Each
// of them writes to an overlay on a tmpfs, which counts as its own memory. Its network namespace
// has no name: the agent makes it and holds its file until the container is in it.
//
// Once a container runs, the agent needs containerd only to pause, resume and end it. It sees the
// end by a pidfd and dials the sandbox's own loopback device, so a containerd that is restarted is
// not noticed by a call. Containers and their shims outlive agent and containerd.
package containerd
