// Package build makes what a machine or a microVM boots from: the testbed host's kernel, initrd
// and root, the guest's kernel and initrd, and the root images of the function runtimes; and k6.
//
// A recipe (packages, files, versions) is hashed, and its result is an entry of the cache under
// that hash. The same packages give the same bytes. Nothing here needs root: packages are
// unpacked into a tree in memory (rootfs) that is written as an EROFS image, and no maintainer
// script runs. Only what a kernel is built with is installed on this machine, and not for a node.
//
// No node imports this package. A node that lacks an image starts `fastiov image build`.
package build
