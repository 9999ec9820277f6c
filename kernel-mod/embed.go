// Package kernelmod holds the host's part of fastiov in the kernel: its configuration, the patches
// to Linux, the module fastiovd and the selftests of all three.
package kernelmod

import "embed"

// Files holds the files of this directory.
//
//go:embed host.config host-debug.config host-kcsan.config patches fastiovd selftests
var Files embed.FS
