package pull

import (
	"context"
	"time"
)

// A Receiver pulls images in a process of its own. It begins with nothing, on an empty disk.
type Receiver interface {
	// Start starts it, on so many CPUs, all if 0. What it keeps goes below dir.
	Start(ctx context.Context, dir string, cpus int) error
	// Pull pulls an image until it can be mounted.
	Pull(ctx context.Context, ref string) (Pulled, error)
	// Process is the process whose CPU time and memory, with those of its children, are its own.
	Process() int
	// Stop ends it, and leaves nothing mounted.
	Stop()
}

// Pulled holds what a receiver says of a pull.
type Pulled struct {
	Took     time.Duration
	Stages   map[string]time.Duration
	Inflater string        // that it chose, if it says so
	CPU      time.Duration // of processes that are not the receiver's: its client
}

// An Arm is a receiver by its name.
type Arm struct {
	Name  string                         `json:"name"`
	About string                         `json:"about"` // version, what inflates for it
	New   func(registry string) Receiver `json:"-"`
}
