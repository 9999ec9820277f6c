// Package hypervisorpatches holds patches to the programs above the host's kernel, the
// configuration of a guest kernel, and what all that is built with.
package hypervisorpatches

import "embed"

// Files holds the files of this directory.
//
//go:embed qemu guest-linux
var Files embed.FS
