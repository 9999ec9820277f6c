//go:build !failpoint

package failpoint

// Enabled reports whether this build has failpoints.
const Enabled = false

// Hit marks a step. In this build it does nothing.
func Hit(Name) {}

// Delay marks a step that can be delayed. In this build it does nothing.
func Delay(Name) {}
