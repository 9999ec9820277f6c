package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/fastiovd"
	"github.com/fastiov/fastiov/node-agent/sandbox/bare"
)

// The page sizes of the mapped memory.
const (
	SmallPages   = "small"
	HugePages    = "huge"    // transparent ones
	HugeTLBPages = "hugetlb" // reserved for hugetlbfs
)

// What makes the VF's address space.
const (
	Type1   = "type1" // a VFIO container
	IOMMUFD = "iommufd"
)

const hugePage = 2 << 20

// DMAMap measures how long it takes to map its guest's memory for a VF, and how long the guest's
// first touches of that memory take afterwards. So a cost that was only moved is shown where it
// went. Each round measures all points.
type DMAMap struct {
	VF     GroupVF
	Points []DMAPoint
	Rounds int
	Out    io.Writer // progress
}

// A DMAPoint is a kind of memory and its costs.
type DMAPoint struct {
	IOMMU   string          `json:"iommu"`
	SizeMiB int             `json:"size_mib"`
	Memory  string          `json:"memory"`
	Policy  fastiovd.Policy `json:"policy"`

	Map Quantiles `json:"map_ms"`
	// of all the memory, once, after it is mapped
	Touch Quantiles `json:"first_touch_us_per_2mib"`
	// the same without a DMA mapping: an ordinary first touch
	Demand   Quantiles `json:"demand_zero_us_per_2mib"`
	Zeroed   Quantiles `json:"zeroed_mib_after_map"`
	maps     []float64
	touches  []float64
	demands  []float64
	zeroings []float64
}

// DMAMapResult is the result of DMAMap.
type DMAMapResult struct {
	Kernel string     `json:"kernel"`
	Rounds int        `json:"rounds"`
	Points []DMAPoint `json:"points"`
}

// Choose makes the points of all possible combinations.
func (b *DMAMap) Choose(iommus, sizes, memories []string, policies []fastiovd.Policy) error {
	for _, iommu := range iommus {
		if kinds := []string{Type1, IOMMUFD}; !slices.Contains(kinds, iommu) {
			return fmt.Errorf("no address space by %q: there are %v", iommu, kinds)
		}
		if err := b.choose(iommu, sizes, memories, policies); err != nil {
			return err
		}
	}
	if len(b.Points) == 0 || b.Rounds < 1 {
		return fmt.Errorf("--iommu, --size, --memory, --arms and --rounds want at least one")
	}
	return nil
}

func (b *DMAMap) choose(
	iommu string, sizes, memories []string, policies []fastiovd.Policy,
) error {
	for _, size := range sizes {
		mib, err := mebibytes(size)
		if err != nil {
			return err
		}
		for _, memory := range memories {
			if kinds := []string{SmallPages,
				HugePages, HugeTLBPages}; !slices.Contains(kinds, memory) {
				return fmt.Errorf("no memory of %q pages: there are %v", memory, kinds)
			}
			for _, policy := range policies {
				p := DMAPoint{
					IOMMU: iommu, SizeMiB: mib, Memory: memory, Policy: policy,
				}
				if memory == HugeTLBPages && p.Policy == fastiovd.TouchMap {
					continue
				}
				b.Points = append(b.Points, p)
			}
		}
	}
	return nil
}

// mebibytes reads a size in QEMU's notation: 256M or 1G.
func mebibytes(text string) (int, error) {
	for suffix, factor := range map[string]int{"M": 1, "G": 1024} {
		if digits, ok := strings.CutSuffix(text, suffix); ok {
			if n, err := strconv.Atoi(digits); err == nil && n > 0 && n*factor <= 1<<20 &&
				n*factor%2 == 0 {
				return n * factor, nil
			}
		}
	}
	return 0, fmt.Errorf("size %q: use an even number of MiB as in 256M, or 1G", text)
}

// Run runs the benchmark.
func (b *DMAMap) Run(ctx context.Context) (*DMAMapResult, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(b.Points, func(p DMAPoint) bool { return p.Policy == fastiovd.Table }) {
		restore, err := fastiovd.AllowTable()
		if err != nil {
			return nil, err
		}
		defer restore()
	}
	restore, err := setAside(b.Points)
	if err != nil {
		return nil, err
	}
	defer restore()
	for round := range b.Rounds {
		for i := range b.Points {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			p := &b.Points[i]
			if err := b.play(p); err != nil {
				return nil, fmt.Errorf("%s, %d MiB, %s pages, %s: %w",
					p.IOMMU, p.SizeMiB, p.Memory, p.Policy, err)
			}
			fmt.Fprintf(b.Out, "dma-map  %s  %d MiB  %s pages  %s  round %d/%d  %.1f ms\n", p.IOMMU,
				p.SizeMiB, p.Memory, p.Policy, round+1, b.Rounds, p.maps[round])
		}
	}
	for i := range b.Points {
		p := &b.Points[i]
		p.Map, p.Touch, p.Demand, p.Zeroed = QuantilesOf(p.maps), QuantilesOf(p.touches),
			QuantilesOf(p.demands), QuantilesOf(p.zeroings)
	}
	return &DMAMapResult{Kernel: unix.ByteSliceToString(name.Release[:]), Rounds: b.Rounds,
		Points: b.Points}, nil
}

// setAside reserves pages for the largest memory of the points.
func setAside(points []DMAPoint) (restore func(), err error) {
	const path = "/proc/sys/vm/nr_hugepages"
	pages := 0
	for _, p := range points {
		if p.Memory == HugeTLBPages {
			pages = max(pages, p.SizeMiB<<20/hugePage)
		}
	}
	if pages == 0 {
		return func() {}, nil
	}
	before, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	restore = func() { _ = os.WriteFile(path, before, 0) }
	if err := os.WriteFile(path, []byte(strconv.Itoa(pages)), 0); err != nil {
		return nil, err
	}
	got, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(got)) != strconv.Itoa(pages) {
		err = fmt.Errorf("of %d huge pages the host has %s to set aside: choose a smaller --size",
			pages, strings.TrimSpace(string(got)))
	}
	if err != nil {
		restore()
		return nil, err
	}
	return restore, nil
}

// play measures one round: first the memory without a VF, then with a VF.
func (b *DMAMap) play(p *DMAPoint) error {
	open := func() (*bare.VF, error) { return bare.OpenVF(b.VF.Group, b.VF.BDF) }
	if p.IOMMU == IOMMUFD {
		open = func() (*bare.VF, error) { return bare.OpenVFUnderIOMMUFD(b.VF.BDF) }
	}
	vf, err := open()
	if err != nil {
		return err
	}
	defer vf.Close()
	if err := p.with(func(ram []byte, _ *os.File) error {
		p.demands = append(p.demands, touch(ram))
		return nil
	}); err != nil {
		return err
	}
	return p.with(func(ram []byte, memfd *os.File) error {
		zeroed := func() (float64, error) { return float64(p.SizeMiB), nil }
		if p.Policy != fastiovd.Eager {
			registration, err := fastiovd.Register(memfd, p.Policy, false)
			if err != nil {
				return err
			}
			defer registration.Close()
			zeroed = func() (float64, error) {
				stat, err := fastiovd.Read(registration)
				return float64(stat.Zeroed) / (1 << 20), err
			}
		}
		begin := time.Now()
		if err := vf.Map(ram); err != nil {
			return err
		}
		p.maps = append(p.maps, time.Since(begin).Seconds()*1e3)
		mib, err := zeroed()
		if err != nil {
			return err
		}
		p.zeroings = append(p.zeroings, mib)
		// this policy looks at what a guest touches, and this process is not a guest
		if p.Policy != fastiovd.Table {
			p.touches = append(p.touches, touch(ram))
		}
		return vf.Unmap(ram)
	})
}

// with calls f with a new memory of the point's kind.
func (p *DMAPoint) with(f func(ram []byte, memfd *os.File) error) error {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if p.Memory == HugeTLBPages {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	fd, err := unix.MemfdCreate("ram", flags)
	if err != nil {
		return err
	}
	memfd := os.NewFile(uintptr(fd), "ram")
	defer memfd.Close()
	size := p.SizeMiB << 20
	if err := memfd.Truncate(int64(size)); err != nil {
		return err
	}
	ram, unmap, err := mapAligned(fd, size, hugePage)
	if err != nil {
		return err
	}
	defer unmap()
	switch p.Memory {
	case SmallPages:
		err = unix.Madvise(ram, unix.MADV_NOHUGEPAGE)
	case HugePages:
		err = unix.Madvise(ram, unix.MADV_HUGEPAGE)
	}
	if err != nil {
		return err
	}
	return f(ram, memfd)
}

// mapAligned maps a file at a multiple of align; otherwise no huge page fits.
func mapAligned(fd, size, align int) (ram []byte, unmap func(), err error) {
	space, err := unix.MmapPtr(-1, 0, nil, uintptr(size+align), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, err
	}
	at := unsafe.Add(space, -uintptr(space)&uintptr(align-1))
	if _, err := unix.MmapPtr(fd, 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return nil, nil, err
	}
	return unsafe.Slice((*byte)(at), size),
		func() { _ = unix.MunmapPtr(space, uintptr(size+align)) }, nil
}

// touch writes a byte to every page of ram and returns the time for 2 MiB, in microseconds.
func touch(ram []byte) float64 {
	const page = 4096
	begin := time.Now()
	for i := 0; i < len(ram); i += page {
		ram[i] = 1
	}
	return time.Since(begin).Seconds() * 1e6 / float64(len(ram)>>21)
}

// Print shows the result for people, with what each policy saves or costs against eager.
func (r *DMAMapResult) Print(w io.Writer) {
	fmt.Fprintf(w, "kernel %s, %d rounds, medians\n", r.Kernel, r.Rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t,
		"MiB\tpages\tIOMMU\tpolicy\tmap ms\tagainst eager\tMiB zeroed then\tfirst touch µs/2 MiB\tordinary\t")
	for _, p := range r.Points {
		against := ""
		i := slices.IndexFunc(r.Points, func(o DMAPoint) bool {
			return o.IOMMU == p.IOMMU && o.SizeMiB == p.SizeMiB && o.Memory == p.Memory &&
				o.Policy == fastiovd.Eager
		})
		if i >= 0 && p.Policy != fastiovd.Eager {
			against = fmt.Sprintf("%+.1f %%", 100*(p.Map.Median/r.Points[i].Map.Median-1))
		}
		touched := "–"
		if p.Touch.Count > 0 {
			touched = fmt.Sprintf("%.0f", p.Touch.Median)
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%.1f\t%s\t%.0f\t%s\t%.0f\t\n", p.SizeMiB, p.Memory, p.IOMMU,
			p.Policy, p.Map.Median, against, p.Zeroed.Median,
			touched, p.Demand.Median)
	}
	t.Flush()
}
