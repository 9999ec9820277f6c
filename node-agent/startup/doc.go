// Package startup makes the cold start: a chain of phases from an image to a runtime that answers.
//
//		image ──→ reserve ──→ wire ──→ boot ──→ init ──→ ready
//		  │           │         │        │        │
//		  └───────────┴─────────┴────────┴────────┴─→ undone in reverse, reported, refused or failed
//
//	  - image finds the root image of the runtime. A registry may take long to send it, so nothing
//	    that others wait for is held meanwhile. The image stays in the cache until the sandbox ends.
//	  - reserve takes memory and a NIC together, in order of arrival, or waits with a reason.
//	    No phase below it can find the node full.
//	  - wire makes the run directory and gives the NIC its address.
//	  - boot starts the VMM. As soon as there is a process, the record by which it can be adopted is
//	    on disk, and the NIC's lease names the process.
//	  - init hands the function to its runtime.
//
// Each phase has a deadline, leaves its times in the Timeline, and owns its undo. An undo cannot
// fail and may run twice. A caller that goes away cancels the phase that runs; all that it held is
// given back.
package startup
