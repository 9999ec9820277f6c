// Package ablation compares arms: it plays rounds of cold starts under each, keeps what they
// showed, sums that up, and draws it in the form of the figures of the FastIOV paper.
//
// A round is one node that is made for it, one burst of N calls at once, and what was counted
// meanwhile. Rounds are played in turn, so that other load of the machine affects all arms alike.
// Each is kept when it is over, so an ablation that was interrupted goes on where it stopped.
package ablation

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fastiov/fastiov/bench/kept"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
)

// An Order says what one round measures.
type Order struct {
	Arm       string `json:"arm"`
	Function  string `json:"function"`
	N         int    `json:"n"`
	MemoryMiB int    `json:"memory_mib"`
	Number    int    `json:"round"`
}

// A Round holds what one round showed.
type Round struct {
	Order
	Setting
	Kernel    string         `json:"kernel"` // of the host that played it
	Run       time.Time      `json:"run"`    // when its run began
	Requested int            `json:"requested"`
	Answered  int            `json:"answered"`
	Leaked    int            `json:"leaked"`
	Errors    map[string]int `json:"errors,omitempty"`
	Starts    []Start        `json:"starts"`
	// of the whole round; what was not counted is absent
	Counts map[Count]float64 `json:"counts"`
	// of sandboxes that failed, each a .tar.gz; Run takes them out
	Reports map[string][]byte `json:"reports,omitempty"`
}

// A Setting holds what rounds that are compared have in common.
type Setting struct {
	Sandbox   string `json:"sandbox"`
	Simulated bool   `json:"simulated,omitempty"` // the times are programmed, not measured
	Version   string `json:"version"`             // of fastiov
	Place     string `json:"place"`               // this machine or a testbed
	Flags     string `json:"flags,omitempty"`     // of `up`, and of the store that functions use
	Machine   string `json:"machine"`             // with its kernel
}

func (s Setting) String() string {
	words := fmt.Sprintf("sandbox %s, fastiov %s, played in %s", s.Sandbox, s.Version, s.Place)
	if s.Flags != "" {
		words += " with " + s.Flags
	}
	return words + ", on " + cmp.Or(s.Machine, "a machine that was not noted")
}

// A Start is one cold start. Times are in milliseconds; Begin counts from the first of the round.
type Start struct {
	Begin    float64                    `json:"begin_ms"`
	EndToEnd float64                    `json:"end_to_end_ms"`
	GuestCPU float64                    `json:"guest_cpu_ms"` // that the guest's processor computed
	Stages   map[timeline.Stage]float64 `json:"stages_ms"`
	Segments []Segment                  `json:"segments"`
}

// A Segment is a piece of a start's time, of the innermost stage that was open in it.
type Segment struct {
	Stage timeline.Stage `json:"stage"`
	From  float64        `json:"from_ms"` // since the round's first start began
	To    float64        `json:"to_ms"`
}

// Critical returns the start's time without that in which its guest computed.
func (s Start) Critical() float64 { return s.EndToEnd - s.GuestCPU }

// VFRelated returns the time of the stages that the paper calls VF-related.
func (s Start) VFRelated() (sum float64) {
	for _, stage := range vfRelated {
		sum += s.Stages[stage]
	}
	return sum
}

var vfRelated = []timeline.Stage{timeline.DMARAM, timeline.DMAImage, timeline.VFIODev,
	timeline.VFDriver}

// A Count is a kind of event or an amount that is counted beside the times.
type Count string

// What is counted from the first request of a round to its last answer.
const (
	Resets   Count = "resets"     // of PCI functions
	Mapped   Count = "mapped_mib" // memory mapped for DMA
	Zeroed   Count = "zeroed_mib" // of the guests' memory, until the first answer
	Execs    Count = "execs"      // programs started, QEMU's launcher and QEMU among them
	Mounts   Count = "mounts"
	IPTables Count = "iptables" // changes of tables, of iptables or nftables
)

// Counts lists all of them.
var Counts = []Count{Resets, Mapped, Zeroed, Execs, Mounts, IPTables}

// A Bench plays what of its rounds is not kept yet.
type Bench struct {
	Arms      []arm.Arm
	Functions []string // the paper's figures are of the first
	// Skip reports whether a function has nothing to do under an arm; nil: none.
	Skip      func(a arm.Arm, function string) bool
	N         []int
	MemoryMiB []int
	Rounds    int
	Setting   Setting
	Kept      *kept.Rounds[*Round]
	Folder    string // of reports; empty: none is kept
	Play      func(ctx context.Context, order Order) (*Round, error)
	Out       io.Writer // progress
}

// Orders returns the rounds in the order in which they are played. In each round another arm comes
// first, and every second round goes backwards: an arm may find the machine's memory as the one
// before it left that, so none always follows the same.
func (b *Bench) Orders() (orders []Order) {
	for number := 1; number <= b.Rounds; number++ {
		for _, n := range b.N {
			for _, memory := range b.MemoryMiB {
				orders = append(orders, b.turns(Order{N: n, MemoryMiB: memory, Number: number})...)
			}
		}
	}
	return orders
}

// turns returns an order of each arm and function.
func (b *Bench) turns(order Order) (orders []Order) {
	first, step := order.Number-1, 1
	if order.Number%2 == 0 {
		step = len(b.Arms) - 1
	}
	for _, function := range b.Functions {
		for i := range b.Arms {
			a := b.Arms[(first+i*step)%len(b.Arms)]
			if b.Skip == nil || !b.Skip(a, function) {
				order.Arm, order.Function = a.String(), function
				orders = append(orders, order)
			}
		}
	}
	return orders
}

// Run plays the rounds and returns them all, those of before too.
func (b *Bench) Run(ctx context.Context) (*Result, error) {
	orders := b.Orders()
	begin := time.Now()
	if err := b.alike(); err != nil {
		return nil, err
	}
	for i, order := range orders {
		if b.has(order) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		round, err := b.Play(ctx, order)
		if err == nil {
			round.Order, round.Setting, round.Run = order, b.Setting, begin.UTC()
			err = b.sameKernel(round)
		}
		if err == nil {
			err = b.report(round)
		}
		if err == nil {
			err = b.Kept.Add(round)
		}
		if err != nil {
			return nil, fmt.Errorf("%s, %s, %d at once, %d MiB, round %d: %w", order.Arm,
				order.Function, order.N, order.MemoryMiB, order.Number, err)
		}
		fmt.Fprintf(b.Out, "startup  %d/%d  %s  %s  n=%d  %d MiB  round %d  %d/%d answered"+
			"  %.0f ms  %s\n", i+1, len(orders), order.Arm, order.Function, order.N,
			order.MemoryMiB, order.Number, round.Answered, round.Requested,
			mean(endToEnd(round.Starts)), time.Since(begin).Round(time.Second))
	}
	return resultOf(b.Kept.All, orders), nil
}

// alike refuses rounds of another setting, which are not compared with those of this one.
func (b *Bench) alike() error {
	for _, round := range b.Kept.All {
		if round.Setting != b.Setting {
			return fmt.Errorf("%s has rounds of %v, and these are of %v: choose another"+
				" folder, or remove that file", b.Kept.File(), round.Setting, b.Setting)
		}
	}
	return nil
}

// sameKernel refuses a round that another kernel has played, as where a testbed's is a new one.
func (b *Bench) sameKernel(round *Round) error {
	for _, other := range b.Kept.All {
		if other.Kernel != round.Kernel {
			return fmt.Errorf("%s has rounds of kernel %s, and this is one of %s: choose another"+
				" folder, or remove that file", b.Kept.File(), other.Kernel, round.Kernel)
		}
	}
	return nil
}

func (b *Bench) has(order Order) bool {
	return slices.ContainsFunc(b.Kept.All, func(r *Round) bool { return r.Order == order })
}

// report puts the reports of a round into the folder: the node that had them is gone.
func (b *Bench) report(round *Round) error {
	for id, report := range round.Reports {
		if b.Folder == "" {
			fmt.Fprintf(b.Out, "startup  %s failed; --plot keeps the report\n", id)
			continue
		}
		path := filepath.Join(b.Folder, id+".tar.gz")
		if err := os.WriteFile(path, report, 0o600); err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "startup  %s failed; its report is %s\n", id, path)
	}
	round.Reports = nil
	return nil
}

func endToEnd(starts []Start) (times []float64) {
	for _, s := range starts {
		times = append(times, s.EndToEnd)
	}
	return times
}

func mean(values []float64) (sum float64) {
	for _, v := range values {
		sum += v / float64(len(values))
	}
	return sum
}
