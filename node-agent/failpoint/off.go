//go:build !failpoint

package failpoint

// Enabled tells whether this build has failpoints.
const Enabled = false

// Hit marks a step.
func Hit(Name) {}
