//go:build region

package qemu

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/kprobe"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

// regionSize is that of the root image in these tests.
const regionSize = 256 << 20

// A way to have the root image. Without a QEMU it is in the host's own.
type way struct {
	name string
	root arm.Root
	vmm  hypervisor.QEMU
	want uint64 // bytes of the image that are mapped
}

// TestWhatIsMappedOfTheRoot compares a disk with a region, in the host's own QEMU.
func TestWhatIsMappedOfTheRoot(t *testing.T) {
	needs := testbed.Needs{NICs: 1, Images: []string{runtimeName}}
	testbed.Inside(t, needs, func(t *testing.T) {
		compare(t, way{"disk", arm.Disk, hypervisor.QEMU{}, 0},
			way{"region", arm.Region, hypervisor.QEMU{}, regionSize})
	})
}

// TestThePatchedQEMUMapsNoRegion compares all three in the patched QEMU.
func TestThePatchedQEMUMapsNoRegion(t *testing.T) {
	needs := testbed.Needs{NICs: 1, Images: []string{runtimeName, hypervisor.Patched}}
	testbed.Inside(t, needs, func(t *testing.T) {
		images, err := image.OpenSet(testbed.ImagesDir)
		if err != nil {
			t.Fatal(err)
		}
		from, err := images.PatchedQEMU(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		prefix := t.TempDir() // the shared file system lets no user in who is not root
		if err := os.CopyFS(prefix, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		patched, err := hypervisor.In(t.Context(), prefix)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, way{"disk", arm.Disk, patched, 0},
			way{"region", arm.Region, patched, regionSize},
			way{"region with dma=off", arm.Unmapped, patched, 0})
	})
}

// compare starts guests in each way, in turn, and prints the medians of what they take. What is
// mapped is judged, and that each function answers. The first way is with a disk.
func compare(t *testing.T, ways ...way) {
	images, err := image.OpenSet(testbed.ImagesDir)
	if err != nil {
		t.Fatal(err)
	}
	region, err := images.Guest.Further(image.RegionName)
	if err != nil {
		t.Fatal(err)
	}
	var starts []*rootStart
	for _, w := range ways {
		set := arm.None
		set.Root = w.root
		config := Config{Arm: set, QEMU: w.vmm}
		if set.HasRegion() {
			config.Further = region
		}
		s, probe := subject(t, config)
		starts = append(starts, &rootStart{way: w, subject: s, probe: probe,
			image: padded(t, s.Spec(0).Root), took: map[string][]float64{}})
	}
	const rounds = 3
	for range rounds {
		for _, s := range starts {
			s.start(t)
		}
	}
	for _, s := range starts {
		for _, what := range []string{untilReady, untilAnswer, string(timeline.VMM),
			string(timeline.DMARAM), string(timeline.DMAImage), string(timeline.GuestBoot),
			string(timeline.Agent), mappedMiB} {
			slices.Sort(s.took[what])
			t.Logf("%s: %s: %s", s.name, what, amount(s.took[what]))
		}
		if s.mapped != starts[0].mapped+s.want {
			t.Errorf("%s: %d bytes are mapped, and %d with a disk", s.name, s.mapped,
				starts[0].mapped)
		}
	}
}

// padded returns a copy of the image that is regionSize large.
func padded(t *testing.T, root string) string {
	t.Helper()
	from, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.Create(filepath.Join(t.TempDir(), "root.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Truncate(regionSize); err != nil {
		t.Fatal(err)
	}
	return to.Name()
}

// What is measured of a start, beside stages in ms.
const (
	untilReady  = "until the guest is ready, ms"
	untilAnswer = "from there to the first answer, ms"
	mappedMiB   = "mapped for DMA, MiB"
)

// A rootStart is one way to have a root image, and what starts with it took.
type rootStart struct {
	way
	subject sandboxtest.Subject
	probe   *kprobe.Probe
	image   string
	mapped  uint64
	took    map[string][]float64
}

func (s *rootStart) start(t *testing.T) {
	t.Helper()
	d, release, err := s.subject.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if d.(*Driver).config.Arm.HasRegion() {
		// the first guest of an image waits until that is read
		first, err := d.(*Driver).images.open(t.Context(), sandbox.Spec{Root: s.image}, false)
		if err != nil {
			t.Fatal(err)
		}
		first.file.Close()
	}
	spec := s.subject.Spec(0)
	spec.ID, spec.Dir, spec.Root = "root", t.TempDir(), s.image
	ctx, cancel := context.WithTimeout(t.Context(), s.subject.Within)
	defer cancel()
	var tl timeline.Timeline
	before, begin := s.probe.Mapped(), time.Now()
	vm, err := d.Start(ctx, spec, &tl, func(sandbox.Record) error { return nil })
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	defer vm.Close()
	ready := time.Now()
	runtime := openwhisk.New(vm, wire.RuntimePort, nil)
	status, answer, err := runtime.Init(ctx, []byte(sandboxtest.Init))
	if err == nil && status == http.StatusOK {
		status, answer, err = runtime.Run(ctx, []byte(`{"value":{"name":"root"}}`), time.Time{})
	}
	if err != nil || status != http.StatusOK {
		t.Fatalf("%s: %d %s %v", s.name, status, answer, err)
	}
	note := func(what string, n float64) { s.took[what] = append(s.took[what], n) }
	note(untilReady, ms(ready.Sub(begin)))
	note(untilAnswer, ms(time.Since(ready)))
	s.mapped = s.probe.Mapped() - before
	note(mappedMiB, float64(s.mapped)/(1<<20))
	stages := map[timeline.Stage]time.Duration{}
	for _, span := range tl.Spans() {
		stages[span.Stage] += span.End.Sub(span.Begin)
	}
	for _, stage := range []timeline.Stage{timeline.VMM, timeline.DMARAM, timeline.DMAImage,
		timeline.GuestBoot, timeline.Agent} {
		note(string(stage), ms(stages[stage]))
	}
	if (stages[timeline.DMAImage] > 0) != (s.want > 0) {
		t.Errorf("%s: mapping the image took %v", s.name, stages[timeline.DMAImage])
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func amount(sorted []float64) string {
	return fmt.Sprintf("%.0f (%.0f to %.0f)", sorted[len(sorted)/2], sorted[0],
		sorted[len(sorted)-1])
}
