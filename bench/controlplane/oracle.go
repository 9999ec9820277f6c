package controlplane

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/bench/plot"
)

// Against holds how fast this product serves Knative's API and how fast the oracle does, which is
// Kubernetes's library of API servers over etcd, with Knative's definitions and Knative's own
// admission. Both work in turn, on one machine and one file system, and are asked over TLS by the
// same clients, in JSON. Both have a change on their disk before they answer.
//
// They do not do the same for a created service. The oracle keeps that one object, as no controller
// runs there. Ours has its configuration, route and revision made meanwhile, which are durable,
// too, and all their statuses, so that it is ready. In ReadyRate and ReadyCPU both have the same
// objects and statuses in the end. The oracle's clients write what Knative's controllers would,
// once the services are created, each durably. Ours are seen; statuses may be durable later. A
// change of a service is one of its configuration and route, too, in ours alone.
type Against struct {
	CPUs   int     `json:"cpus"`
	Others float64 `json:"cpus_busy_with_other_work"` // meanwhile, on average
	// of both, at the end
	Services int `json:"services"`

	Creates   Beside `json:"creates_per_second"` // until they are answered, 8 at once
	CreateCPU Beside `json:"cpu_us_of_a_create"` // with all that is made of it
	CreateKiB Beside `json:"kib_written_for_a_create"`
	// until all objects and statuses of a turn's services are there that make them ready
	ReadyRate Beside `json:"ready_per_second"`
	ReadyCPU  Beside `json:"cpu_us_of_a_ready_service"`
	// while 8 clients change services, and 10 watch all of them
	Changes   Beside `json:"changes_per_second"`
	Events    Beside `json:"watch_events_per_second"` // that all watchers together read
	ChangeCPU Beside `json:"cpu_us_of_a_change"`      // with its events
	MiB       Beside `json:"mib_resident"`            // after each turn of changes
	Lost      int    `json:"lost"`
	Reordered int    `json:"reordered"`
}

// Beside holds a figure's quartiles over all turns, and those of the ratios of two turns in a row.
type Beside struct {
	Fastiov bench.Quartiles `json:"fastiov"`
	Oracle  bench.Quartiles `json:"oracle"`
	Ratio   bench.Quartiles `json:"ratio"` // fastiov's divided by the oracle's
}

const (
	turns       = 8 // of each, of creates and of changes
	creators    = 8
	ofTurn      = services / turns
	changesTurn = 2 * time.Second
	rest        = 300 * time.Millisecond // in which a server that has nothing left does little
)

// A peer is one of the two servers.
type peer struct {
	kube
	cmd   *exec.Cmd
	whole *whole // what its clients write of each service; nil: the server does that
	w     Watches

	creates, createCPU, createKiB, ready, readyCPU []float64
	changes, events, changeCPU, mib                []float64
}

// Against has both make services, and then change them while they are watched.
func (b *Bench) Against(ctx context.Context, oracle string) (*Against, error) {
	var on unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &on); err != nil {
		return nil, err
	}
	if on.Type == unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("%s is in memory, so nothing there is durable; set TMPDIR to a"+
			" folder of a disk", os.TempDir())
	}
	s, err := b.up(ctx, "--memory", "1000000", "--changes-per-minute", unlimited)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	ours := &peer{kube: s.kube, cmd: s.cmd}
	ours.base = "https://" + s.address
	theirs, stop, err := b.startOracle(ctx, oracle)
	if err != nil {
		return nil, err
	}
	defer stop()
	if theirs.whole, err = s.wholeOf(ctx, "exemplar"); err != nil {
		return nil, err
	}
	both := []*peer{ours, theirs}
	a := &Against{CPUs: runtime.NumCPU(), Services: services}
	begun := time.Now()
	before, err := a.others(both)
	if err != nil {
		return nil, err
	}
	for turn := range 2 * turns {
		for i := range both {
			of := both[(i+turn)%2] // nobody is always first
			if turn < turns {
				err = of.createTurn(ctx, turn)
			} else {
				err = of.changesTurn(ctx, turn-turns)
			}
			if err != nil {
				return nil, err
			}
		}
		fmt.Fprintf(b.Out, "knative  turn %d of %d\n", turn+1, 2*turns)
	}
	after, err := a.others(both)
	if err != nil {
		return nil, err
	}
	a.Others = (after - before).Seconds() / time.Since(begun).Seconds()
	a.Creates = beside(ours.creates, theirs.creates)
	a.CreateCPU = beside(ours.createCPU, theirs.createCPU)
	a.CreateKiB = beside(ours.createKiB, theirs.createKiB)
	a.ReadyRate = beside(ours.ready, theirs.ready)
	a.ReadyCPU = beside(ours.readyCPU, theirs.readyCPU)
	a.Changes = beside(ours.changes, theirs.changes)
	a.Events = beside(ours.events, theirs.events)
	a.ChangeCPU = beside(ours.changeCPU, theirs.changeCPU)
	a.MiB = beside(ours.mib, theirs.mib)
	for _, p := range both {
		if a.Lost, a.Reordered = p.w.Lost, p.w.Reordered; a.Lost+a.Reordered > 0 {
			return nil, fmt.Errorf("%s has lost %d events, and told %d out of order", p.base,
				a.Lost, a.Reordered)
		}
	}
	return a, nil
}

func beside(ours, theirs []float64) Beside {
	ratios := make([]float64, len(ours))
	for i := range ratios {
		ratios[i] = ours[i] / theirs[i]
	}
	return Beside{bench.QuartilesOf(ours), bench.QuartilesOf(theirs), bench.QuartilesOf(ratios)}
}

// others returns the CPU time that all processes have used but this one and those that it measures.
func (a *Against) others(both []*peer) (time.Duration, error) {
	all, err := bench.Busy()
	for _, pid := range []int{os.Getpid(), both[0].cmd.Process.Pid, both[1].cmd.Process.Pid} {
		own, why := cpuOf(pid)
		all -= own
		err = errors.Join(err, why)
	}
	return all, err
}

// startOracle starts the oracle by its command line: the program, and where Knative's definitions
// are. It ends with its standard input.
func (b *Bench) startOracle(ctx context.Context, line string) (_ *peer, stop func(), err error) {
	dir, err := os.MkdirTemp("", "fastiov-bench-") // beside the other's
	if err != nil {
		return nil, nil, err
	}
	args := append(strings.Fields(line), "-dir", dir, "-user", "guest")
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "SYSTEM_NAMESPACE=knative-serving")
	var log bytes.Buffer
	cmd.Stderr = &log
	_, err = cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("the oracle does not begin: %s", lastLine(log.String()))
	}
	s := &peer{kube: kube{newClient(), strings.TrimSpace(address), ""}, cmd: cmd}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err = s.revision(ctx); err == nil {
			return s, stop, nil
		}
		if time.Now().After(deadline) {
			stop()
			return nil, nil, fmt.Errorf("the oracle does not answer: %w", err)
		}
	}
}

// createTurn has a turn's services made, by several clients at once.
func (s *peer) createTurn(ctx context.Context, turn int) error {
	from, err := s.revision(ctx)
	if err != nil {
		return err
	}
	before, err := s.used()
	if err != nil {
		return err
	}
	begun := time.Now()
	var next atomic.Int64
	clients, clientsCtx := errgroup.WithContext(ctx)
	for range creators {
		clients.Go(func() error {
			for {
				n := int(next.Add(1)) - 1
				if n >= ofTurn {
					return nil
				}
				if _, err := s.create(clientsCtx, fmt.Sprintf("s-%d", turn*ofTurn+n)); err != nil {
					return err
				}
			}
		})
	}
	if err := clients.Wait(); err != nil {
		return err
	}
	took := time.Since(begun)
	s.creates = append(s.creates, ofTurn/took.Seconds())
	if s.whole == nil {
		if err := s.awaitReady(ctx, from); err != nil {
			return err
		}
		took = time.Since(begun)
	}
	after, err := s.quiet(ctx)
	if err != nil {
		return err
	}
	s.createCPU = append(s.createCPU, (after.cpuUs-before.cpuUs)/ofTurn)
	s.createKiB = append(s.createKiB, (after.kib-before.kib)/ofTurn)
	if s.whole != nil {
		begun = time.Now()
		if err := s.complete(ctx, s.whole, turn); err != nil {
			return err
		}
		took += time.Since(begun)
		if after, err = s.quiet(ctx); err != nil {
			return err
		}
	}
	s.ready = append(s.ready, ofTurn/took.Seconds())
	s.readyCPU = append(s.readyCPU, (after.cpuUs-before.cpuUs)/ofTurn)
	return nil
}

// awaitReady returns when a turn's services are ready, by a watch from before they were made.
func (s *peer) awaitReady(ctx context.Context, from string) error {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	watch, err := s.send(ctx, http.MethodGet,
		servicesOf+"?watch=true&resourceVersion="+from, "", "")
	if err != nil {
		return err
	}
	defer watch.Body.Close()
	ready := map[string]bool{}
	lines := bufio.NewScanner(watch.Body)
	lines.Buffer(nil, 1<<20)
	for len(ready) < ofTurn {
		if !lines.Scan() {
			return fmt.Errorf("%d of %d services are ready: %w", len(ready), ofTurn, lines.Err())
		}
		if bytes.Contains(lines.Bytes(), []byte(`"type":"Ready","status":"True"`)) {
			var event struct {
				Object struct{ Metadata struct{ Name string } }
			}
			if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
				return err
			}
			ready[event.Object.Metadata.Name] = true
		}
	}
	return nil
}

// changesTurn has services changed while they are watched.
func (s *peer) changesTurn(ctx context.Context, turn int) error {
	if s.w.last == nil {
		s.w.last = map[int]string{}
	}
	before, err := s.used()
	if err != nil {
		return err
	}
	changes, events, err := s.watchRound(ctx, &s.w, turn, changesTurn)
	if err != nil {
		return err
	}
	after, err := s.quiet(ctx)
	if err != nil {
		return err
	}
	resident, err := residentOf(s.cmd)
	s.changes, s.events = append(s.changes, changes), append(s.events, events)
	s.changeCPU = append(s.changeCPU,
		(after.cpuUs-before.cpuUs)/(changes*changesTurn.Seconds()))
	s.mib = append(s.mib, resident.MiB)
	return err
}

type used struct{ cpuUs, kib float64 }

// quiet returns what the server has caused once it causes little more: both write behind their
// answers.
func (s *peer) quiet(ctx context.Context) (u used, err error) {
	const little = 0.02 // of a CPU
	for until := time.Now().Add(time.Minute); time.Now().Before(until) && ctx.Err() == nil; {
		before, err := s.used()
		if err != nil {
			return u, err
		}
		time.Sleep(rest)
		if u, err = s.used(); err != nil {
			return u, err
		}
		if u.cpuUs-before.cpuUs < little*float64(rest.Microseconds()) && u.kib == before.kib {
			return u, nil
		}
	}
	return u, cmp.Or(ctx.Err(),
		errors.New("a server has work for over a minute though nobody asks it"))
}

// used returns the CPU time and the writing to disks that the server has caused.
func (s *peer) used() (u used, err error) {
	cpu, err := cpuOf(s.cmd.Process.Pid)
	if err != nil {
		return u, err
	}
	u.cpuUs = float64(cpu) / float64(time.Microsecond)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.cmd.Process.Pid))
	if err != nil {
		return u, err
	}
	_, behind, _ := bytes.Cut(text, []byte("\nwrite_bytes: "))
	var bytes float64
	_, err = fmt.Fscan(strings.NewReader(string(behind)), &bytes)
	u.kib = bytes / 1024
	return u, err
}

// Print shows the result to a person.
func (a *Against) Print(w io.Writer) {
	fmt.Fprintf(w, "medians of %d turns [quartiles]; %.1f of %d CPUs were busy with other work\n",
		turns, a.Others, a.CPUs)
	for _, row := range []struct {
		what string
		of   Beside
	}{
		{"creates a second", a.Creates}, {"CPU of a create, µs", a.CreateCPU},
		{"written for a create, KiB", a.CreateKiB}, {"ready a second", a.ReadyRate},
		{"CPU until one is ready, µs", a.ReadyCPU}, {"changes a second", a.Changes},
		{"events a second", a.Events}, {"CPU of a change, µs", a.ChangeCPU},
		{"MiB", a.MiB},
	} {
		fmt.Fprintf(w, "%26s  fastiov %7.0f [%.0f, %.0f]  oracle %7.0f [%.0f, %.0f]  "+
			"ratio %.2f [%.2f, %.2f]\n", row.what,
			row.of.Fastiov.Median, row.of.Fastiov.Q1, row.of.Fastiov.Q3,
			row.of.Oracle.Median, row.of.Oracle.Q1, row.of.Oracle.Q3,
			row.of.Ratio.Median, row.of.Ratio.Q1, row.of.Ratio.Q3)
	}
	fmt.Fprintf(w, "%d services, %d watchers, %d events lost, %d reordered\n", a.Services,
		watchers, a.Lost, a.Reordered)
}

// Draw draws the rates of both into a folder.
func (a *Against) Draw(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	about := fmt.Sprintf("medians of %d turns [quartiles]; %.1f of %d CPUs were busy with "+
		"other work", turns, a.Others, a.CPUs)
	for _, f := range []struct {
		file, title, y string
		of             Beside
	}{
		{"creates", "Services created in a second", "creates/s", a.Creates},
		{"events", fmt.Sprintf("Events that %d watchers read in a second", watchers), "events/s",
			a.Events},
	} {
		bars := plot.Bars{Y: f.y, Parts: []string{about}, Colours: []int{plot.Series8[0]}}
		for _, bar := range []struct {
			label string
			of    bench.Quartiles
		}{{"fastiov", f.of.Fastiov}, {"API server", f.of.Oracle}} {
			bars.Bars = append(bars.Bars, plot.Bar{Label: bar.label,
				Values: []float64{bar.of.Median},
				Note:   fmt.Sprintf("%.0f [%.0f, %.0f]", bar.of.Median, bar.of.Q1, bar.of.Q3)})
		}
		err := os.WriteFile(filepath.Join(folder, f.file+".svg"), bars.SVG(f.title, about), 0o644)
		if err != nil {
			return err
		}
	}
	return nil
}
