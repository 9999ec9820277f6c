// Package oci pulls container images from registries. It trusts neither a registry, nor the maker
// of an image, nor the network between.
//
//	Find    reference ─▶ allowed? ─▶ manifest, verified ─▶ its digest
//	Unpack  config, layers ──bytes, hashed here──▶ a process of its own ──▶ root.erofs, program
//
// The agent speaks HTTP, reads manifests of at most 4 MiB, and hashes each byte that it passes on:
// config and layers match the manifest, and the manifest matches the reference. The unpacking
// process parses everything else of a stranger: gzip, zstd, tar, the config's JSON, the image's
// accounts. It also compares each layer with its diff id. That process has no privileges, no
// network, no files except the two it writes, and bounded memory (confine.go), so a bomb ends that
// process and nothing else.
//
// If a stranger's bytes take the process over, they can change the root image or the program that
// is made of them. That gains nothing: the result is kept under the digest of the manifest with
// these bytes, so only users of that image get it.
package oci
