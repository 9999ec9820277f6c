// Package oci pulls container images from registries. It trusts neither a registry, nor the maker
// of an image, nor the network between.
//
//	Find     reference ─▶ allowed? ─▶ manifest, verified ─▶ its digest
//	Inspect  config ──▶ a process ──▶ can it be started?
//	Unpack   a layer ──blocks, hashed here──▶ a process of its own ──▶ blob, index
//	Merge    blobs and indexes ──▶ a process ──▶ root.erofs, program
//
// The agent speaks HTTP, reads manifests of at most 4 MiB, and hashes each byte that it passes on:
// config and layers match the manifest, and the manifest matches the reference. The processes
// parse everything else of a stranger: gzip, zstd, tar, the config's JSON, the image's accounts.
// They have no privileges, no network, no files except those they are handed, and bounded memory
// (confine.go), so a bomb ends its process and nothing else.
//
// If a stranger's bytes take a process over, they can change what is made of them: a layer's blob,
// its index and its diff id, or a root and its program. That gains nothing: a layer is kept under
// the digest of these bytes and has a process for itself, and a root under the digest of the
// manifest, so only users of these bytes get what was made of them.
package oci
