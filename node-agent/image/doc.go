// Package image holds what a node needs of images: the cache of finished ones, the sets of runtimes
// that sandboxes boot, and pulls from registries.
//
//	Set ─ source ┬ a folder of images that Export wrote
//	             ├ Make ─▶ a builder, a process of its own (image/build) ─▶ Cache
//	             └ Pull ─▶ a registry (image/oci) ─▶ Cache
//
// An entry of the cache is found by the hash of its inputs. It is built in a directory of its own
// under a lock and renamed into place, so it is whole or absent, and two processes do not build it
// twice. Entries in use stay; of the others, those unused for longest are evicted.
package image
