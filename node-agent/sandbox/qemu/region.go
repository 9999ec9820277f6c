package qemu

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// To measure with, a guest may have its root image as Kata has it: as a read-only NVDIMM, a region
// of memory that all guests of an image share. VFIO maps it for DMA as it maps all memory, unless a
// patched QEMU is told to leave it out.

// An nvdimm is a root image in sealed memory. Its size is a multiple of huge pages, since the
// guest's driver takes nothing else.
type nvdimm struct {
	file *os.File
	size int64
	dma  bool // VFs may reach it
}

// region adds the NVDIMM.
func (c *command) region(d nvdimm) {
	object := fmt.Sprintf("memory-backend-file,id=image,share=on,readonly=on,size=%d,"+
		"mem-path=/proc/self/fd/%d", d.size, c.pass(d.file))
	if !d.dma {
		object += ",dma=off" // which no other QEMU knows
	}
	c.add("-object", object, "-device", "nvdimm,memdev=image,unarmed=on")
}

// regions keeps the image that was used last, since the next guest is likely to have the same.
type regions struct {
	loads singleflight.Group
	mu    sync.Mutex
	of    []string // the files that it was made of
	last  nvdimm
}

// open returns the image of spec, with a file that the caller closes.
func (r *regions) open(ctx context.Context, spec sandbox.Spec, unmapped bool) (nvdimm, error) {
	of := append([]string{spec.Root}, spec.Layers...)
	for {
		d, err := r.lend(of, unmapped)
		if d.file != nil || err != nil {
			return d, err
		}
		loaded := r.loads.DoChan(strings.Join(of, "\x00"), func() (any, error) {
			return nil, r.load(of)
		})
		select {
		case done := <-loaded:
			if done.Err != nil {
				return nvdimm{}, done.Err
			}
		case <-ctx.Done():
			return nvdimm{}, context.Cause(ctx)
		}
	}
}

func (r *regions) load(of []string) error {
	made, err := load(of)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last.file != nil {
		r.last.file.Close()
	}
	r.of, r.last = of, made
	return nil
}

// lend returns the image that was used last, if it is of these files.
func (r *regions) lend(of []string, unmapped bool) (nvdimm, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(of, r.of) {
		return nvdimm{}, nil
	}
	fd, err := unix.FcntlInt(r.last.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nvdimm{}, err
	}
	return nvdimm{os.NewFile(uintptr(fd), "image"), r.last.size, !unmapped}, nil
}

// load reads files into memory, one after the other as on a disk.
func load(paths []string) (d nvdimm, err error) {
	if d.file, err = hold("root image", hugePage, paths...); err != nil {
		return d, err
	}
	info, err := d.file.Stat()
	if err != nil {
		d.file.Close()
		return d, err
	}
	d.size = info.Size()
	return d, nil
}
