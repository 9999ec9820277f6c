package ablation

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/bench/kept"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
)

var setting = Setting{Sandbox: "qemu", Version: "test"}

// played is a round whose starts take as long as its order says.
func played(order Order) *Round {
	r := &Round{Order: order, Setting: setting, Kernel: "6.12", Requested: order.N,
		Answered: order.N, Counts: map[Count]float64{Resets: float64(2 * order.N), Execs: 7,
			Mapped: float64(order.N * order.MemoryMiB)}}
	for i := range order.N {
		took := float64(1000*(i+1) + 10*order.Number + order.MemoryMiB)
		if order.Arm == "none" {
			took *= 2
		}
		r.Starts = append(r.Starts, Start{Begin: float64(i), EndToEnd: took, GuestCPU: took / 4,
			Stages: map[timeline.Stage]float64{timeline.VFIODev: took / 2,
				timeline.GuestBoot: took / 2},
			Segments: []Segment{{timeline.VFIODev, float64(i), took / 2},
				{timeline.GuestBoot, took / 2, took}}})
	}
	return r
}

func benchOf(t *testing.T, path string, played func(Order) (*Round, error)) *Bench {
	t.Helper()
	folder, name := filepath.Split(path)
	kept, err := kept.Open[*Round](folder, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kept.Close() })
	return &Bench{Arms: []arm.Arm{arm.None, arm.All, arm.NoNet}, Functions: []string{"hello"},
		N: []int{1, 2}, MemoryMiB: []int{256, 512}, Rounds: 3, Setting: setting, Kept: kept,
		Out:  io.Discard,
		Play: func(_ context.Context, order Order) (*Round, error) { return played(order) }}
}

func TestRoundsOfAllArmsTakeTurns(t *testing.T) {
	var first []string
	var orders []Order
	b := benchOf(t, "", func(o Order) (*Round, error) {
		if len(orders)%3 == 0 {
			first = append(first, o.Arm)
		}
		orders = append(orders, o)
		return played(o), nil
	})
	if _, err := b.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(orders) != 3*2*2*3 {
		t.Fatalf("%d rounds", len(orders))
	}
	for i := 0; i < len(orders); i += 3 {
		names := []string{orders[i].Arm, orders[i+1].Arm, orders[i+2].Arm}
		slices.Sort(names)
		if !slices.Equal(names, []string{"all", "none", "nonet"}) {
			t.Errorf("rounds %d to %d are of %v", i, i+2, names)
		}
	}
	if !slices.Equal(first, []string{"none", "none", "none", "none", "all", "all", "all", "all",
		"nonet", "nonet", "nonet", "nonet"}) {
		t.Errorf("the first of each turn: %v", first)
	}
}

func TestNoArmAlwaysFollowsTheSame(t *testing.T) {
	b := benchOf(t, "", nil)
	b.N, b.MemoryMiB, b.Rounds = b.N[:1], b.MemoryMiB[:1], 6
	orders, follows := b.Orders(), map[string]int{}
	for i, o := range orders[1:] {
		if o.Number == orders[i].Number {
			follows[orders[i].Arm+", "+o.Arm]++
		}
	}
	for pair, times := range follows {
		if len(follows) != 6 || times != 2 {
			t.Errorf("%d pairs; %s: %d times", len(follows), pair, times)
		}
	}
}

// What was measured is not measured again, and a round whose line was cut short is.
func TestAnInterruptedAblationGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rounds.jsonl")
	failed, plays := errors.New("the machine was switched off"), 0
	b := benchOf(t, path, func(o Order) (*Round, error) {
		if plays++; plays == 6 {
			return nil, failed
		}
		return played(o), nil
	})
	if _, err := b.Run(t.Context()); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content[:len(content)-10], 0o644); err != nil {
		t.Fatal(err)
	}
	plays = 100
	again := benchOf(t, path, func(o Order) (*Round, error) {
		plays++
		return played(o), nil
	})
	r, err := again.Run(t.Context())
	if err != nil || plays-100 != 36-4 {
		t.Fatalf("%d rounds were played, %v", plays-100, err)
	}
	whole, err := benchOf(t, "", func(o Order) (*Round, error) { return played(o), nil }).
		Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got, want bytes.Buffer
	r.Print(&got)
	whole.Print(&want)
	if got.String() != want.String() {
		t.Errorf("in two runs:\n%s\nin one:\n%s", &got, &want)
	}
}

// The report of a sandbox that failed outlives the round's node, and the rounds do not have it.
func TestReportsAreKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "rounds.jsonl")
	b := benchOf(t, path, func(o Order) (*Round, error) {
		r := played(o)
		r.Reports = map[string][]byte{"fn-" + o.Arm: []byte("why")}
		return r, nil
	})
	b.Folder = dir
	if _, err := b.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	report, err := os.ReadFile(filepath.Join(dir, "fn-all.tar.gz"))
	rounds, err2 := os.ReadFile(path)
	if err = errors.Join(err, err2); err != nil || string(report) != "why" ||
		bytes.Contains(rounds, []byte("reports")) {
		t.Errorf("%q, %v; rounds: %.200s", report, err, rounds)
	}
}

func TestRoundsOfAnotherSettingAreNotCompared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rounds.jsonl")
	b := benchOf(t, path, func(o Order) (*Round, error) { return played(o), nil })
	if _, err := b.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, other := range []Setting{{Sandbox: "bare", Version: "test"},
		{Sandbox: "qemu", Version: "test", Place: "a testbed"},
		{Sandbox: "qemu", Version: "test", Machine: "another, Linux 6.12"},
		{Sandbox: "qemu", Version: "test", Flags: "--huge-pages"}} {
		b.Setting = other
		if _, err := b.Run(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "another folder") {
			t.Errorf("%v: %v", other, err)
		}
	}
}

// A round of another kernel is not kept, and the days of the runs are told.
func TestRoundsOfAnotherKernelAreNotCompared(t *testing.T) {
	path, kernel := filepath.Join(t.TempDir(), "rounds.jsonl"), "6.12"
	play := func(o Order) (*Round, error) {
		r := played(o)
		r.Kernel = kernel
		return r, nil
	}
	b := benchOf(t, path, play)
	r, err := b.Run(t.Context())
	if err != nil || r.rounds[0].Run.IsZero() || !strings.HasPrefix(r.Days, "on 20") {
		t.Fatalf("%v, %q", err, r.Days)
	}
	r.rounds[0].Run = time.Date(2001, 2, 3, 0, 0, 0, 0, time.UTC)
	if days := daysOf(r.rounds); !strings.HasPrefix(days, "from 2001-02-03 to 20") {
		t.Errorf("%q", days)
	}
	kernel, b.Rounds = "6.13", 4
	n := len(b.Kept.All)
	if _, err := b.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "kernel 6.12") ||
		len(b.Kept.All) != n {
		t.Errorf("%d rounds more, %v", len(b.Kept.All)-n, err)
	}
}

func TestACellSumsUpItsRounds(t *testing.T) {
	b := benchOf(t, "", func(o Order) (*Round, error) { return played(o), nil })
	r, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := r.cell("none", 2, 256)
	if c == nil || c.Rounds != 3 || c.Answered != 6 || c.EndToEnd.Count != 6 ||
		c.EndToEnd.Min != 2*1266 || c.EndToEnd.Max != 2*2286 {
		t.Fatalf("%+v", c)
	}
	if got := c.Critical.Mean / c.EndToEnd.Mean; got < 0.7499 || got > 0.7501 {
		t.Errorf("the critical path is %v of the whole", got)
	}
	if c.Counts[Resets].Median != 2 || c.Counts[Mapped].Median != 256 {
		t.Errorf("%+v for each start", c.Counts)
	}
	if _, counted := c.Counts[Mounts]; counted {
		t.Error("what was not counted is there")
	}
	if !r.Whole() {
		t.Error("all calls were answered")
	}
	r.Cells[0].Leaked++
	if r.Whole() {
		t.Error("something is left")
	}
}

// elements returns the page's elements with their attributes, and all its text.
func elements(t *testing.T, content []byte) (starts []xml.StartElement, text string) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(content))
	d.Entity = xml.HTMLEntity
	var words strings.Builder
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return starts, words.String()
		}
		if err != nil {
			t.Fatalf("the page is not valid: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			starts = append(starts, token.Copy())
		case xml.CharData:
			words.Write(token)
		}
	}
}

// The page has all figures: each has data and the command that makes it, or says why it has none.
func TestThePageIsWhole(t *testing.T) {
	const command = "fastiov bench startup --arms 'none <all>'"
	b := benchOf(t, "", func(o Order) (*Round, error) { return played(o), nil })
	r, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "old.svg"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.Draw(folder, command); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(folder, Page))
	if err != nil {
		t.Fatal(err)
	}
	all, text := elements(t, content)
	count, ids := map[string]int{}, map[string]bool{}
	for _, e := range all {
		count[e.Name.Local]++
		for _, a := range e.Attr {
			if a.Name.Local == "id" {
				if ids[a.Value] {
					t.Errorf("two elements are %s", a.Value)
				}
				ids[a.Value] = true
			}
		}
	}
	for _, e := range all {
		for _, a := range e.Attr {
			if a.Name.Local == "href" && !ids[strings.TrimPrefix(a.Value, "#")] {
				t.Errorf("%s leads nowhere", a.Value)
			}
		}
	}
	if count["section"] != 11 || count["svg"] != 10 || count["script"] != 0 {
		t.Errorf("the page has %d sections, %d drawings and %d scripts", count["section"],
			count["svg"], count["script"])
	}
	if n := strings.Count(text, command); n != 8 {
		t.Errorf("%d of the 8 figures with data name the command", n)
	}
	for _, name := range []string{"Figure 1:", "Figure 5:", "Table 1:", "Figure 11:", "Figure 12:",
		"Figure 13:", "Figure 14:", "Figure 15:"} {
		if strings.Count(text, name) < 2 {
			t.Errorf("the page lacks %s, or a link to it", name)
		}
	}
	if n := strings.Count(text, noData); n != 3 { // 14, 15 and the network
		t.Errorf("%d figures say that they have no data", n)
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.svg"))
	if err != nil || len(files) != 10 || slices.Contains(files, filepath.Join(folder, "old.svg")) {
		t.Errorf("the folder has %v, %v", files, err)
	}
}

// A page of few data says of each figure that lacks some why, and what would give it some.
func TestAFigureWithoutDataSaysSo(t *testing.T) {
	one := played(Order{Arm: "none", N: 1, MemoryMiB: 256, Number: 1})
	none := &Round{Order: one.Order, Setting: setting, Requested: 1,
		Errors: map[string]int{"<it failed>": 1}}
	simulated := played(one.Order)
	simulated.Simulated, simulated.Counts, simulated.Starts[0].GuestCPU = true, nil, 0
	for name, c := range map[string]struct {
		round *Round
		lacks int
	}{"one start": {one, 5}, "no answer": {none, 11}, "simulated": {simulated, 7}} {
		rounds := resultOf([]*Round{c.round}, []Order{c.round.Order})
		files, err := rounds.draw("fastiov bench startup")
		if err != nil {
			t.Fatal(err)
		}
		_, text := elements(t, files[Page])
		if n := strings.Count(text, noData); n != c.lacks {
			t.Errorf("%s: %d figures say that they have no data, not %d", name, n, c.lacks)
		}
		said := strings.Contains(text, "programmed from the paper's Table 1")
		if said != (name == "simulated") {
			t.Errorf("%s: it says that it is simulated: %v", name, said)
		}
		for file, content := range files {
			if file != Page {
				elements(t, content)
			}
		}
	}
}

// Starts without an answer are in no figure, so each table says of how many it is, and the page
// names an arm that was never answered.
func TestThePageSaysWhatWasNotAnswered(t *testing.T) {
	b := benchOf(t, "", func(o Order) (*Round, error) {
		r := played(o)
		switch {
		case o.Arm == "all":
			r.Answered, r.Starts = 0, nil
		case o.Arm == "none" && o.N == 2:
			r.Answered, r.Starts = 1, r.Starts[:1]
		}
		return r, nil
	})
	r, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files, err := r.draw("fastiov bench startup")
	if err != nil {
		t.Fatal(err)
	}
	_, text := elements(t, files[Page])
	for _, want := range []string{"30 of 54 starts answered",
		"2 at once, 256 MiB each, 9/12 answered",
		"none, 2 at once, 256 MiB, round 3, 1/2 answered", "all, hello, 1 at once, 256 MiB: 0/3",
		"no start of hello was answered of 2 at once with 256 MiB: all."} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, f := range r.figures() {
		for _, table := range f.Tables {
			if strings.HasPrefix(table.Caption, "the paper") {
				continue
			}
			if !strings.Contains(fmt.Sprint(table), "answered") ||
				!strings.Contains(fmt.Sprint(table.Rows), "3/6") {
				t.Errorf("%s does not say how many were answered: %v", f.Title, table)
			}
		}
	}
}

// Arms are compared at one memory: the least that all have, or else they are left out.
func TestArmsAreComparedAtOneMemory(t *testing.T) {
	for _, c := range []struct {
		failed Order
		want   string
	}{
		{Order{Arm: "all", N: 2, MemoryMiB: 256}, "[none 512 all 512 nonet 512] "},
		{Order{Arm: "all", N: 2}, "[none 256 nonet 256] " +
			"Left out, since no start of hello was answered of 2 at once with 256 MiB: all."},
	} {
		b := benchOf(t, "", func(o Order) (*Round, error) {
			r := played(o)
			if o.Arm == c.failed.Arm && o.N == c.failed.N &&
				(c.failed.MemoryMiB == 0 || o.MemoryMiB == c.failed.MemoryMiB) {
				r.Answered, r.Starts = 0, nil
			}
			return r, nil
		})
		r, err := b.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var of []any
		for _, cell := range r.largest() {
			of = append(of, cell.Arm, cell.MemoryMiB)
		}
		if got := fmt.Sprint(of, " ", r.fig11().LeftOut); got != c.want {
			t.Errorf("without %+v: %s, not %s", c.failed, got, c.want)
		}
	}
}

// Only of a simulation the page says that it is one: containers have no guest either.
func TestAReasonIsThatOfTheSandbox(t *testing.T) {
	for _, c := range []struct {
		setting        Setting
		guests, counts string
	}{
		{Setting{Sandbox: "sim", Simulated: true}, "starts are simulated", "a simulation resets"},
		{Setting{Sandbox: "qemu"}, "Containers have none", "nothing was counted"},
	} {
		round := played(Order{Arm: "none", N: 1, MemoryMiB: 256, Number: 1})
		round.Setting, round.Counts, round.Starts[0].GuestCPU = c.setting, nil, 0
		r := resultOf([]*Round{round}, []Order{round.Order})
		for f, want := range map[*figure]string{
			new(r.critical()): c.guests, new(r.counts()): c.counts} {
			if !strings.Contains(f.Missing, want) {
				t.Errorf("%s, %s: %q", c.setting.Sandbox, f.Title, f.Missing)
			}
		}
	}
}

// Functions are played under each arm that they have something to do under. The paper's figures are
// of the first, and those that compare functions have them all.
func TestFunctionsAreCompared(t *testing.T) {
	b := benchOf(t, "", func(o Order) (*Round, error) { return played(o), nil })
	b.Functions = []string{"hello", "echo-net"}
	b.Skip = func(a arm.Arm, function string) bool { return a.NoNet && function == "echo-net" }
	r, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var of []string
	for _, c := range r.byFunction() {
		of = append(of, c.Arm+" "+c.Function)
		if c.Rounds != 3 || c.N != 2 {
			t.Errorf("%s, %s: %d rounds of %d at once", c.Arm, c.Function, c.Rounds, c.N)
		}
	}
	if want := []string{"none hello", "none echo-net", "all hello", "all echo-net",
		"nonet hello"}; !slices.Equal(of, want) {
		t.Errorf("%q are compared, not %q", of, want)
	}
	if c := r.cell("none", 2, 256); c.Function != "hello" || len(r.arms()) != 3 {
		t.Errorf("the paper's figures are of %s, with the arms %v", c.Function, r.arms())
	}
	for _, f := range []figure{r.fig15(), r.network()} {
		if f.Missing != "" || len(f.Tables[0].Rows) != len(of) {
			t.Errorf("%s: %s %v", f.Title, f.Missing, f.Tables)
		}
	}
}

// The paper's own numbers agree with each other as far as its text says how they belong together.
func TestThePapersNumbersAgree(t *testing.T) {
	var mean, p99 float64
	for _, s := range paperShares {
		if slices.Contains(vfRelated, s.stage) {
			mean, p99 = mean+s.mean, p99+s.p99
		}
	}
	near := func(a, b float64) bool { return a-b < 2.4 && b-a < 2.4 }
	if !near(mean, paperVFMean) || !near(p99, paperVFP99) {
		t.Errorf("the VF-related stages add up to %.1f and %.1f", mean, p99)
	}
	percent := map[string]float64{}
	for _, a := range paperArms {
		percent[a.name] = a.percent
		if a.ours == "" {
			continue
		}
		if _, err := arm.Parse(a.ours); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
	}
	for _, tail := range paperTails { // the average above No-Net
		if got := 100 * (percent[tail.name]/percent["No-Net"] - 1); !near(got, tail.mean) {
			t.Errorf("%s is %.1f %% above No-Net, and its text says %.1f", tail.name, got,
				tail.mean)
		}
	}
}
