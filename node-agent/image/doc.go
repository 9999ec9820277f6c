// Package image builds once, and keeps, everything a machine or a microVM boots from: the testbed host's kernel, initrd and root, the
// guest's kernel and initrd, and the root images of the function runtimes.
//
// A recipe (packages, files, versions) is hashed; its result is an entry of the cache under that hash. An entry is built in a directory
// of its own under a lock and renamed into place, so it is whole or absent, and two builders do not build it twice. The same packages
// give the same bytes. Nothing here needs root: packages are unpacked into a tree in memory (rootfs) that is written as an EROFS image,
// and no maintainer script runs.
package image
