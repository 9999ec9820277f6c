package pool

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

var sizes = []int{10, 100, 1000, 10_000}

// crowd is a node with n busy sandboxes of n groups, and n that idle, in as many namespaces as n
// has digits times ten.
func crowd(b *testing.B, n int) *world {
	b.Helper()
	cfg := Config{KeepAlive: time.Hour, Wait: time.Hour}
	w := newWorld(cfg, b.Fatalf, nil, sized(2*n, unbounded))
	w.s.mostQueued = unbounded
	for i := range 2 * n {
		w.jobs = w.jobs[:0]
		t := w.arrive(groupJob(i), time.Hour)
		w.settle()
		w.started(t.box, true)
		if i%2 == 0 {
			w.finish(t, true)
		}
		w.settle()
	}
	w.boxes = nil
	return w
}

func groupJob(i int) Demand {
	return Demand{Namespace: fmt.Sprint("n", i%50), Group: fmt.Sprint("g", i), MemoryMiB: 100}
}

// turn is all that the owner does for an event.
func (w *world) turn(b *testing.B) (last step) {
	for do, more := decide(w.s, w.now); more; do, more = decide(w.s, w.now) {
		w.s.apply(&do, w.now)
		if do.kind != Evict {
			last = do
		}
	}
	return last
}

// BenchmarkDecide is the cost of one job's decisions, from its arrival to its end, beside so many
// busy sandboxes and as many idle ones: in a warm sandbox; in a new one for which another is
// evicted; and the same with a queue as long.
func BenchmarkDecide(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("warm/%d", n), func(b *testing.B) {
			w := crowd(b, n)
			jobs := make([]Demand, n)
			for i := range jobs {
				jobs[i] = groupJob(2 * i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.now = w.now.Add(time.Microsecond)
				job := jobs[i%n]
				who := waiting(w.now, w.now.Add(time.Hour))
				w.s.arrive(who, &job, false, w.now)
				do := w.turn(b)
				if do.kind != Warm {
					b.Fatal(show(do))
				}
				w.s.done(do.box, who, true, w.now)
				w.turn(b)
			}
		})
		b.Run(fmt.Sprintf("cold/%d", n), func(b *testing.B) {
			w := crowd(b, n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.now = w.now.Add(time.Microsecond)
				job := groupJob(2*n + i)
				w.s.arrive(waiting(w.now, w.now.Add(time.Hour)), &job, false, w.now)
				do := w.turn(b)
				if do.kind != Cold {
					b.Fatal(show(do))
				}
				w.started(do.box, true)
				w.s.done(do.box, do.waiter, true, w.now)
				w.turn(b)
			}
		})
		b.Run(fmt.Sprintf("queue/%d", n), func(b *testing.B) {
			w := newWorld(Config{KeepAlive: time.Hour}, b.Fatalf, nil, sized(8, unbounded))
			w.s.mostQueued = unbounded
			var busy []step
			for i := range n + 8 {
				job := groupJob(i)
				w.s.arrive(waiting(w.now, w.now.Add(time.Hour)), &job, false, w.now)
				if do := w.turn(b); do.kind == Cold {
					w.started(do.box, true)
					busy = append(busy, do)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ { // one ends, another comes: the queue stays as long
				w.now = w.now.Add(time.Microsecond)
				w.s.done(busy[i%8].box, busy[i%8].waiter, true, w.now)
				do := w.turn(b)
				if do.kind != Cold {
					b.Fatal(show(do))
				}
				w.started(do.box, true)
				busy[i%8] = do
				job := groupJob(n + 8 + i)
				w.s.arrive(waiting(w.now, w.now.Add(time.Hour)), &job, false, w.now)
				w.turn(b)
			}
		})
	}
}

// instant is a node on which everything is done at once.
type instant struct{ api.UnimplementedNodeServer }

func (instant) Start(_ context.Context, in *api.StartRequest) (*api.StartReply, error) {
	return &api.StartReply{Id: in.Id, InitStatus: 200}, nil
}
func (instant) Run(context.Context, *api.RunRequest) (*api.RunReply, error) {
	return &api.RunReply{Status: 200}, nil
}
func (instant) Stop(context.Context, *api.StopRequest) (*api.StopReply, error) {
	return &api.StopReply{}, nil
}
func (instant) Status(context.Context, *api.StatusRequest) (*api.StatusReply, error) {
	return &api.StatusReply{MemoryMib: 1 << 20}, nil
}

// BenchmarkDecideBesideTheStarving is the cost of a decision beside so many groups that starve and
// that no node in reach can hold.
func BenchmarkDecideBesideTheStarving(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newScene(b, Config{}, sized(unbounded, 500), sized(unbounded, 2000))
			s.s.mostQueued = unbounded
			s.s.unreached(s.s.nodes[1], "n1 is off", s.now)
			s.begun(of("busy", 300))
			for i := range n {
				s.call(of(fmt.Sprint("huge", i), 1000))
			}
			s.pass(testPatience)
			s.settle()
			s.call(of("large", 400))
			s.want()
			for b.Loop() {
				decide(s.s, s.now)
			}
		})
	}
}

// BenchmarkDo is a whole job on a node in the same process that takes no time: warm, cold, and cold
// where another must be evicted.
func BenchmarkDo(b *testing.B) {
	run := func(name string, keep bool, job func(i int) Demand) {
		b.Run(name, func(b *testing.B) {
			cfg := Config{KeepAlive: time.Hour, Wait: time.Minute, Start: time.Minute}
			p := New(cfg, api.Local(instant{}))
			defer p.Close()
			var n atomic.Int64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					d := job(int(n.Add(1)))
					d.Start = func() (*api.StartRequest, error) { return &api.StartRequest{}, nil }
					over := make(chan struct{})
					p.Acquire(d, func(l *Lease, err error) {
						defer close(over)
						if err == nil {
							_, err = l.Client().Run(l.Context(), &api.RunRequest{Id: l.Sandbox})
							l.Release(keep)
						}
						if err != nil {
							b.Error(err)
						}
					})
					<-over
				}
			})
		})
	}
	run("warm", true, func(int) Demand { return Demand{Group: "a", MemoryMiB: 128} })
	run("cold", false, func(int) Demand { return Demand{Group: "a", MemoryMiB: 128} })
	run("evict", true, groupJob)
}

// BenchmarkWaiting is the memory of a job that waits.
func BenchmarkWaiting(b *testing.B) {
	const jobs = 10_000
	for b.Loop() {
		cfg := Config{KeepAlive: time.Hour, Wait: time.Hour, Start: time.Minute, Queue: 2 * jobs}
		p := New(cfg, api.Local(full{}))
		before := memory()
		for i := range jobs {
			p.Acquire(groupJob(i), func(*Lease, error) {})
		}
		b.ReportMetric(float64(memory()-before)/jobs, "B/job")
		p.Close()
	}
}

// full is a node whose VFs are all in quarantine.
type full struct{ instant }

func (full) Status(context.Context, *api.StatusRequest) (*api.StatusReply, error) {
	return &api.StatusReply{MemoryMib: 1 << 20, Vfs: []*api.VF{{State: "quarantined"}}}, nil
}

func memory() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
