package build

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
)

// A Builder makes what its cache lacks, in this process.
type Builder struct {
	*image.Cache
	NoInstall bool // of tools that this machine lacks, as for a node
}

// Open opens the cache in dir, as Open does.
func Open(dir string, out io.Writer) (*Builder, error) {
	cache, err := image.Open(dir, out)
	return &Builder{Cache: cache}, err
}

// A builder fills the empty directory of an entry.
type builder = func(ctx context.Context, dir string, say func(string, ...any)) error

const guestName = "guest"

// Things lists what a node may ask a builder for.
func Things() []string {
	return append(image.Made(), guestName, image.GuestOf(image.LeanKernel), hypervisor.Thing,
		hypervisor.Patched, hypervisor.Emulator)
}

// Build makes one of Things if the cache lacks it, and returns its entry, which stays in use.
func (b *Builder) Build(ctx context.Context, thing string) (dir string, err error) {
	for _, kernel := range image.GuestKernels() {
		if thing == image.GuestOf(kernel) {
			boot, err := b.GuestWith(ctx, kernel)
			return filepath.Dir(boot.Kernel), err
		}
	}
	if isQEMU(thing) {
		return b.anyQEMU(ctx, thing)
	}
	r, known := recipes[thing]
	if !known {
		return "", fmt.Errorf("no recipe for %q; there are %s", thing, strings.Join(Things(), ", "))
	}
	return b.runtime(ctx, thing, r)
}

// getOrFormer is Get, or where the entry cannot be made, the one of that name that was used last.
func (b *Builder) getOrFormer(
	ctx context.Context, name string, inputs []string, make builder,
) (dir string, err error) {
	dir, err = b.Get(ctx, name, inputs, make)
	if err == nil || ctx.Err() != nil {
		return dir, err
	}
	former, found := b.Latest(ctx, name)
	if !found {
		return "", fmt.Errorf("%w; there is no former %s in the cache to go on with", err, name)
	}
	b.Say(name, "going on with the former one that the cache has: %v", err)
	return former, nil
}

// GuestWith returns the files that a microVM boots from, with that kernel.
func (b *Builder) GuestWith(ctx context.Context, kernel string) (image.Boot, error) {
	if kernel == image.LeanKernel {
		return b.LeanGuest(ctx)
	}
	return b.Guest(ctx)
}

func isQEMU(thing string) bool {
	return thing == hypervisor.Thing || thing == hypervisor.Patched || thing == hypervisor.Emulator
}

func (b *Builder) anyQEMU(ctx context.Context, thing string) (dir string, err error) {
	switch thing {
	case hypervisor.Patched:
		return b.PatchedQEMU(ctx)
	case hypervisor.Emulator:
		return b.Emulator(ctx)
	}
	return b.QEMU(ctx)
}

// Export makes the guest, with that kernel, and those that are named of QEMUs and the runtimes,
// pulls runtimes that are OCI references, and writes all to dir as a set.
func (b *Builder) Export(ctx context.Context, dir, kernel string, names ...string) error {
	guest, err := b.GuestWith(ctx, kernel)
	if err != nil {
		return err
	}
	qemus, runtimes := map[string]string{}, map[string]image.Runtime{}
	for _, name := range names {
		if isQEMU(name) {
			qemus[name], err = b.anyQEMU(ctx, name)
		} else {
			runtimes[name], err = b.runtimeOrPulled(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	return image.Export(dir, guest, qemus, runtimes)
}

func (b *Builder) runtimeOrPulled(ctx context.Context, name string) (image.Runtime, error) {
	r, made := recipes[name]
	if !made {
		pulled, _, err := b.Pull(ctx, name, "") // it stays in use
		return pulled, err
	}
	dir, err := b.runtime(ctx, name, r)
	if err != nil {
		return image.Runtime{}, err
	}
	return image.RuntimeIn(dir)
}
