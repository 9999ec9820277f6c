// Package oci takes container images from registries. A registry, and whoever made an image, is not
// trusted; neither is what lies between them and us.
//
//	Find    reference ─▶ allowed? ─▶ manifest, verified ─▶ its digest
//	Unpack  config, layers ──bytes, hashed here──▶ a process of its own ──▶ root.erofs, program
//
// The agent speaks HTTP, reads manifests of at most 4 MiB, and hashes each byte it passes on: config
// and layers are what the manifest names, the manifest is what the reference names. All else of a
// stranger is parsed by the process: gzip, zstd, tar, the config's JSON, the image's accounts. It
// also holds each layer to its diff id. That process has no privileges, no network, no files but
// the two it writes, and bounded memory (confine.go), so a bomb ends it and nobody else.
//
// A process that a stranger's bytes have taken over can make the root image, or the program, of
// those bytes something else. That is no gain: the result is kept under the digest of the
// manifest whose bytes did it, so it is found by that image's own users alone.
package oci
