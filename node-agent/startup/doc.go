// Package startup is the cold start itself: a chain of phases from an image to a runtime that answers.
//
//		image ──→ reserve ──→ wire ──→ boot ──→ init ──→ ready
//		  │           │         │        │        │
//		  └───────────┴─────────┴────────┴────────┴──→ undone in reverse, reported, refused or failed
//
//	  - image finds the root image of the runtime, which may take a registry its time: nothing that
//	    others wait for is held meanwhile. The image stays in the cache until the sandbox has ended.
//	  - reserve takes memory and a NIC together, in order of arrival, or waits with a reason.
//	    Nothing below it can find the node full.
//	  - wire makes the run directory and gives the NIC its address.
//	  - boot starts the VMM; as soon as there is a process, the record by which it can be adopted is
//	    on disk, and the NIC's lease names the process.
//	  - init hands the function to its runtime.
//
// Each phase has a deadline, leaves its times in the Timeline, and owns its undo. Undoing cannot fail and may run twice. A caller
// that goes away cancels the phase that runs; what it held goes back.
package startup
