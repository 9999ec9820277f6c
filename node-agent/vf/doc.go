// Package vf keeps the node's pool of SR-IOV virtual functions (VFs): bound to vfio-pci, reset,
// addressed, ready to be leased.
//
// A VF is bound once and stays bound. All that a cold start needs of it is done before the cold
// start begins. A Lease is therefore a decision and one small file in a tmpfs, and never waits for
// hardware.
//
//		unbound → preparing → idle → leased → resetting → idle
//		              ↑ │                         │
//		              │ └────→ quarantined ←──────┘      any → gone → unbound
//		              └────────────┘  after a backoff
//
//	  - unbound → preparing: the VF exists; it is bound, given its MAC, VLAN, rate and spoof check,
//	    and reset.
//	  - idle → leased: the longest idle VF is chosen, and the lease is in the journal before the
//	    caller has it.
//	  - leased → resetting: Return. The caller has ended whatever used the VF before; one whose vfio
//	    group some process still holds is not touched.
//	  - leased → preparing: Return, where the tenant had the VF by the kernel's own driver, or with
//	    settings of its own. One whose netdev is still in another network namespace is not touched.
//	  - idle → resetting: the VF reported an error though nobody used it. One that is kept bound to
//	    the kernel's own driver goes to preparing.
//	  - leased → resetting → quarantined: the IOMMU refused its DMA again and again, or the VF
//	    failed three tenants in a row.
//	  - → quarantined: a step failed. The VF is shown with its reason and prepared again after a
//	    backoff.
//	  - → gone: the PF took the VF away (its driver went, or its VFs were removed). A lease on it
//	    stays until it is returned.
//
// A lease has a holder of some kind (owner.go): a sandbox, a pod, a process that has the device to
// itself, a measurement. Each kind has a rule by which a dead holder is known. A living one keeps
// its VF, also when the agent is started again.
//
// Watch (watch.go) shows any number of readers what happens. It shows states and not events, so a
// slow reader skips some, and nothing is kept for it.
//
// Three rules hold at every instant, also across a SIGKILL at any point:
//
//   - A lease is journalled before its VF is touched, and the journal names the holder. After a
//     restart every lease is found again.
//   - A VF has at most one tenant. A generation counts its leases. A return names its generation,
//     so that a late one cannot touch the next tenant.
//   - A VF is leased only after a reset that worked and a check that shows it. One that is kept as
//     a network interface needs no other after a restart if nobody has used it since.
//
// The journal lies in the run directory, one file per VF, each replaced by rename. No microVM
// outlives a boot, so no lease does. A tmpfs is therefore as durable as the leases are, and nothing
// is synced on the start path.
//
// table.go decides and pool.go applies. storm.go ends what the IOMMU cannot, and journal.go
// remembers. sysfs.go is the one file that touches the device tree; kernel.go and network.go are
// the seams below it. undo.go puts a host back as it was found.
package vf
