package pull

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/bench/kept"
)

// A Bench pulls each image by each arm, under each bandwidth, on each number of CPUs, in rounds.
type Bench struct {
	Images []Image
	First  Image // is pulled before, so that a receiver is not new
	Arms   []Arm
	Mbits  []int // bandwidths; 0: what the loopback gives
	CPUs   []int // 0: all
	Rounds int
	Dir    string // receivers keep their files below it
	Out    io.Writer
	Kept   *kept.Rounds[Round]
}

// An Image is one to pull: an OCI layout.
type Image struct {
	Name   string `json:"name"`
	Digest string `json:"digest"` // of the manifest
	Layers int    `json:"layers"`
	Bytes  int64  `json:"bytes"` // of the layers as they are sent
	Whole  int64  `json:"whole"` // of the layers' archives
	Files  int    `json:"files"`
	Dir    string `json:"-"`
}

// An Order is one pull.
type Order struct {
	Image string `json:"image"`
	Mbits int    `json:"mbits"`
	CPUs  int    `json:"cpus"`
	Arm   string `json:"arm"`
	Round int    `json:"round"`
}

// A Round holds what came of an order.
type Round struct {
	Order
	Of       Image              `json:"of"`
	About    string             `json:"about"` // the arm
	On       string             `json:"on"`    // the machine and its kernel
	Run      time.Time          `json:"run"`   // when its run began
	Began    time.Time          `json:"began"`
	Ms       float64            `json:"ms"`
	SyncedMs float64            `json:"synced_ms"` // until all that it wrote was on the disk
	StagesMs map[string]float64 `json:"stages_ms,omitempty"`
	Inflater string             `json:"inflater,omitempty"`
	CPUMs    float64            `json:"cpu_ms"`  // of the receiver, its client and their children
	Memory   int64              `json:"memory"`  // the most that was not a file's, in bytes
	Kept     int64              `json:"kept"`    // bytes of the disk that are taken
	Written  int64              `json:"written"` // bytes that were written to the disk
}

// Run measures what is not kept already.
func (b *Bench) Run(ctx context.Context) (*Result, error) {
	names := map[string]string{b.First.Name: b.First.Dir}
	for _, one := range b.Images {
		names[one.Name] = one.Dir
	}
	registry, err := ServeImages(names)
	if err != nil {
		return nil, err
	}
	defer registry.Close()
	run, on := time.Now().UTC(), machine()
	if err := b.from(on); err != nil {
		return nil, err
	}
	for _, o := range b.orders() {
		of, arm := b.named(o)
		if played, err := b.has(o, of, arm.About); err != nil {
			return nil, err
		} else if played {
			continue
		}
		round, err := b.pull(ctx, registry, o, of, arm)
		if err != nil {
			return nil, fmt.Errorf("%s pulls %s: %w", o.Arm, o.Image, err)
		}
		round.On, round.Run = on, run
		fmt.Fprintf(b.Out, "image  %s, %d Mbit/s, %d CPUs, round %d: %s took %.0f ms\n", o.Image,
			o.Mbits, o.CPUs, o.Round, o.Arm, round.Ms)
		if err := b.Kept.Add(*round); err != nil {
			return nil, err
		}
	}
	return b.result(), nil
}

// from refuses pulls on another machine or kernel.
func (b *Bench) from(machine string) error {
	for _, r := range b.Kept.All {
		if r.On != machine {
			return fmt.Errorf("%s has pulls on %s, and this is %s: name another folder",
				b.Kept.File(), cmp.Or(r.On, "a machine that an earlier build did not note"),
				machine)
		}
	}
	return nil
}

// has says whether an order was played. A pull of another image, or by other programs, under the
// same name is an error: its figure would be told of what was not measured.
func (b *Bench) has(o Order, of Image, about string) (bool, error) {
	n := slices.IndexFunc(b.Kept.All, func(r Round) bool { return r.Order == o })
	if n < 0 {
		return false, nil
	}
	of.Dir = ""
	if r := b.Kept.All[n]; r.Of != of || r.About != about {
		return false, fmt.Errorf("%s has pulls of another %s, or by another %s (%s, now %s): "+
			"name another folder", b.Kept.File(), o.Image, o.Arm, r.About, about)
	}
	return true, nil
}

// named returns what an order names.
func (b *Bench) named(o Order) (Image, Arm) {
	return b.Images[slices.IndexFunc(b.Images, func(i Image) bool { return i.Name == o.Image })],
		b.Arms[slices.IndexFunc(b.Arms, func(a Arm) bool { return a.Name == o.Arm })]
}

// orders returns all pulls, the arms in turn, forwards and backwards: what else the machine does
// hits all alike, and nobody always follows the same.
func (b *Bench) orders() (all []Order) {
	for round := range b.Rounds {
		for _, one := range b.Images {
			for _, mbits := range b.Mbits {
				for _, cpus := range b.CPUs {
					for n := range b.Arms {
						arm := b.Arms[(n+round)%len(b.Arms)]
						if round%2 == 1 {
							arm = b.Arms[(len(b.Arms)-1-n+round)%len(b.Arms)]
						}
						all = append(all, Order{one.Name, mbits, cpus, arm.Name, round})
					}
				}
			}
		}
	}
	return all
}

// pull has a new receiver pull the first image, and then, measured, that of the order.
func (b *Bench) pull(ctx context.Context, registry *Registry, o Order, of Image, arm Arm,
) (_ *Round, err error) {
	dir, err := os.MkdirTemp(b.Dir, "pull-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	disk, err := newDisk(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, disk.remove()) }()
	r := arm.New(registry.Host)
	registry.Limit(o.Mbits)
	if err := r.Start(ctx, disk.at, o.CPUs); err != nil {
		return nil, err
	}
	defer r.Stop()
	if _, err := r.Pull(ctx, registry.Host+"/"+b.First.Name+":first"); err != nil {
		return nil, err
	}
	unix.Sync() // what was written before is not waited for now
	round := &Round{Order: o, Of: of, About: arm.About, StagesMs: map[string]float64{}}
	used, err := disk.used()
	written, err2 := disk.written()
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	cpu := cpuOf(r.Process())
	stop := watchMemory(r.Process())
	round.Began = time.Now()
	p, err := r.Pull(ctx, registry.Host+"/"+o.Image+":latest")
	round.Memory = stop()
	if err != nil {
		return nil, err
	}
	round.Ms, round.CPUMs = ms(p.Took), ms(cpuOf(r.Process())-cpu+p.CPU)
	begin := time.Now()
	if err := disk.sync(); err != nil {
		return nil, err
	}
	round.SyncedMs = round.Ms + ms(time.Since(begin))
	if round.Kept, err = disk.used(); err != nil {
		return nil, err
	}
	if round.Written, err = disk.written(); err != nil {
		return nil, err
	}
	round.Kept, round.Written = round.Kept-used, round.Written-written
	round.Inflater = p.Inflater
	for stage, took := range p.Stages {
		round.StagesMs[stage] = ms(took)
	}
	return round, nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
