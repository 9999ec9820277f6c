// Package hypervisorpatches holds patches to the programs above the host's kernel, and what those
// are built with.
package hypervisorpatches

import "embed"

// Files holds the files of this directory.
//
//go:embed qemu
var Files embed.FS
