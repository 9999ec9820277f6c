// Package failpoint ends the process at a chosen step, so that a test can restart it there and
// check what is left.
//
// Every step at which a crash could lose or double something calls Hit with its name. In an
// ordinary build, Hit is empty and costs nothing. With the build tag "failpoint", the n-th Hit of
// the name in FASTIOV_TEST_FAILPOINT=name:n (n counts from 1) kills the process with SIGKILL: no
// deferred call runs, as if the process had lost its power. Delay marks a step that such a build
// can delay.
package failpoint

import "slices"

// Env is the environment variable that arms a failpoint.
const Env = "FASTIOV_TEST_FAILPOINT"

// A Name names one step.
type Name string

// The steps of the VF pool, in the order of a VF's life.
const (
	OpenLocked Name = "vf-open-locked" // the run directory is ours; nothing else is done
	// the found state is recorded; nothing is changed yet
	OpenUndoRecorded Name = "vf-open-undo"
	OpenAutoprobe    Name = "vf-open-autoprobe"   // native drivers no longer claim new VFs
	OpenCreated      Name = "vf-open-created"     // the VFs exist
	PrepareUnbound   Name = "vf-prepare-unbound"  // taken from its native driver
	PrepareOverride  Name = "vf-prepare-override" // reserved for vfio-pci
	PrepareBound     Name = "vf-prepare-bound"    // bound to vfio-pci
	PrepareNetwork   Name = "vf-prepare-network"  // MAC, VLAN, rate, spoof check set
	ResetBegin       Name = "vf-reset-begin"      // about to be reset
	ResetDone        Name = "vf-reset-done"       // reset, not yet checked
	ResetChecked     Name = "vf-reset-checked"    // reset and checked, not yet idle
	// the new journal entry is written; the old one still counts
	JournalTemp    Name = "vf-journal-temp"
	JournalRenamed Name = "vf-journal-renamed" // the new journal entry counts
	LeaseChosen    Name = "vf-lease-chosen"    // a VF is chosen; the journal does not know it yet
	// the journal knows the lease; the caller does not
	LeaseJournalled Name = "vf-lease-journalled"
	// the tenant's own settings are set; it does not know
	LeaseSet        Name = "vf-lease-set"
	OwnerJournalled Name = "vf-owner-journalled" // the journal knows the process
	NetdevUnbound   Name = "vf-netdev-unbound"   // taken from vfio-pci for a tenant's netdev
	NetdevBound     Name = "vf-netdev-bound"     // it is a netdev; its tenant does not know
	// the sandbox has ended; the journal still says leased
	ReturnBegin      Name = "vf-return-begin"
	ReturnJournalled Name = "vf-return-journalled" // the journal says resetting; no reset has begun
	UndoBegin        Name = "vf-undo-begin"        // about to restore what was found
	UndoVF           Name = "vf-undo-vf"           // one VF is restored; others may not be
	// everything is restored; its record still exists
	UndoRestored  Name = "vf-undo-restored"
	UndoForgotten Name = "vf-undo-forgotten" // the record is deleted; the journal is not yet
)

// The steps of a pull of a container image, and of what becomes of it.
const (
	PullFound   Name = "pull-found"   // the manifest is known; nothing is on the disk
	PullBlock   Name = "pull-block"   // a part of a layer came, and was passed on
	PullLayer   Name = "pull-layer"   // a layer's blob and index are written; it is not sealed
	PullSealed  Name = "pull-sealed"  // an entry is sealed and has no name yet
	PullEntry   Name = "pull-entry"   // an entry has its name; its lock is not given back
	PullMerged  Name = "pull-merged"  // the root is written; it is not sealed
	PullNaming  Name = "pull-naming"  // what the image is called is written; the old name counts
	PullNamed   Name = "pull-named"   // the image has its name
	PullSettled Name = "pull-settled" // the disk has an entry, which does not say so
	EvictMoved  Name = "evict-moved"  // an entry has lost its name; its files are there
)

// Images lists the failpoints of images.
var Images = []Name{
	PullFound, PullBlock, PullLayer, PullSealed, PullEntry, PullMerged, PullNaming, PullNamed,
	PullSettled, EvictMoved,
}

// The steps of the CNI plugin's attachments.
const (
	CNILeased    Name = "cni-leased"    // the VF is leased; its interface is where it was
	CNIPlugged   Name = "cni-plugged"   // it is in the container; the plugin does not know
	CNIUnplugged Name = "cni-unplugged" // it is out again; the lease is still there
)

// CNI lists the failpoints of attachments.
var CNI = []Name{CNILeased, CNIPlugged, CNIUnplugged}

// All lists every failpoint.
var All = slices.Concat(VFs, Images, CNI)

// VFs lists the failpoints of the VF pool.
var VFs = []Name{
	OpenLocked, OpenUndoRecorded, OpenAutoprobe, OpenCreated, PrepareUnbound, PrepareOverride,
	PrepareBound, PrepareNetwork,
	ResetBegin, ResetDone, ResetChecked, JournalTemp, JournalRenamed, LeaseChosen, LeaseJournalled,
	LeaseSet, OwnerJournalled, NetdevUnbound, NetdevBound,
	ReturnBegin, ReturnJournalled, UndoBegin, UndoVF, UndoRestored, UndoForgotten,
}
