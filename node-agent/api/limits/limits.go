// Package limits says how much a program may be given of files. The invoker, which puts them
// together, counts by it, and so does the agent, which takes them.
package limits

import "strings"

const (
	Files  = 4 << 20 // bytes of all, as OfFile and Each count them
	Mounts = 256
	Each   = 512 // bytes that a mount counts, and of a file each part of its path
	Path   = 1024
	Parts  = 16 // of a path

	Sidecars = 16 // programs beside the one that serves

	// SidecarMiB is the part of a sandbox's memory that is for what runs each of them.
	SidecarMiB = 16
)

// OfFile returns how many bytes a file counts.
func OfFile(name string, size int) int { return Each*PartsOf(name) + len(name) + size }

// PartsOf counts the folders of a path, and its file.
func PartsOf(path string) int { return 1 + strings.Count(path, "/") }

// TooLong reports whether a path is longer than one of a file may be.
func TooLong(path string) bool { return len(path) > Path || PartsOf(path) > Parts }
