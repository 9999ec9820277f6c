package startup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	runtimelog "github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// pool is a path to the network with n NICs, which are free again as soon as they are returned.
type pool struct {
	mu     sync.Mutex
	free   []int
	leased map[string]Lease // by device
	faults []string         // the leases that were out then
}

func newPool(n int) *pool {
	p := &pool{leased: map[string]Lease{}}
	for i := range n {
		p.free = append(p.free, i)
	}
	return p
}

func (p *pool) Lease(id string) (Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return Lease{}, &Lacking{LackNIC, errors.New("no idle VF")}
	}
	i := p.free[0]
	p.free = p.free[1:]
	bdf := fmt.Sprintf("0000:01:10.%d", i)
	if other, taken := p.leased[bdf]; taken {
		panic(bdf + " is leased to " + other.ID)
	}
	nic := sandbox.NIC{
		Kind: "vf", MAC: fmt.Sprintf("02:fa:00:00:00:%02x", i), PCI: &sandbox.PCI{BDF: bdf},
	}
	p.leased[bdf] = Lease{ID: id, Number: i, NIC: nic}
	return p.leased[bdf], nil
}

func (p *pool) Own(l Lease, rec sandbox.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.PID, l.StartTicks = rec.PID, rec.StartTicks
	p.leased[l.NIC.Device()] = l
	return nil
}

func (p *pool) Fault(l Lease, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.leased[l.NIC.Device()]; taken {
		p.faults = append(p.faults, why)
	}
}

func (p *pool) Return(l Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.leased[l.NIC.Device()]; !taken {
		panic(l.NIC.Device() + " was returned twice")
	}
	delete(p.leased, l.NIC.Device())
	p.free = append(p.free, l.Number)
}

func (p *pool) Left() []Lease { return nil }

func (p *pool) held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.leased)
}

// driver starts empty sandboxes. fail names the step at which a start breaks.
type driver struct {
	fail    string
	hang    bool
	running int
	mu      sync.Mutex
}

func (d *driver) Start(ctx context.Context, spec sandbox.Spec, tl *timeline.Timeline,
	owned func(sandbox.Record) error) (sandbox.Sandbox, error) {
	defer tl.Begin(timeline.VMM)()
	if err := owned(sandbox.Record{Spec: spec, PID: 4242, StartTicks: 7}); err != nil {
		return nil, err
	}
	if d.hang {
		<-ctx.Done()
		return nil, errors.New("broken by the cancel")
	}
	if d.fail == "vf" {
		return nil, fmt.Errorf("sandbox %s: %w", spec.ID, &sandbox.NICFault{Why: "AER"})
	}
	if d.fail == "boot" {
		return nil, errors.New("the VMM ended: no such file")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running++
	return &box{driver: d, done: make(chan struct{}), logs: runtimelog.New()}, nil
}

func (d *driver) Adopt(context.Context, sandbox.Record) (sandbox.Sandbox, error) {
	return nil, errors.New("nothing to adopt")
}
func (d *driver) End(sandbox.Spec)                   {}
func (d *driver) Leftovers(map[string]bool) []string { return nil }

type box struct {
	driver *driver
	once   sync.Once
	done   chan struct{}
	logs   *runtimelog.Log
}

func (b *box) Dial(context.Context, int) (net.Conn, error) {
	if b.driver.fail == "init" {
		return nil, errors.New("connection reset")
	}
	status := http.StatusOK
	if b.driver.fail == "code" {
		status = http.StatusBadGateway
	}
	return serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }), nil
}

// serve returns a connection on which one request is handled.
func serve(handle http.HandlerFunc) net.Conn {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		r, err := http.ReadRequest(bufio.NewReader(theirs))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w := httptest.NewRecorder()
		handle(w, r)
		response := w.Result()
		response.Close = true
		_ = response.Write(theirs)
	}()
	return ours
}
func (b *box) Logs() *runtimelog.Log        { return b.logs }
func (b *box) Pause(context.Context) error  { return nil }
func (b *box) Resume(context.Context) error { return nil }
func (b *box) Done() <-chan struct{}        { return b.done }
func (b *box) Err() error                   { return nil }
func (b *box) Close() {
	b.once.Do(func() {
		b.driver.mu.Lock()
		defer b.driver.mu.Unlock()
		b.driver.running--
		b.logs.End()
		close(b.done)
	})
}

type images struct{ err error }

func (i images) Hold(context.Context, string) (func(), error) { return nil, nil }

func (i images) Root(context.Context, string, string) (Root, error) {
	return Root{Path: "/root.erofs", Program: wire.Program{Command: []string{"run"},
		Env: map[string]string{"A": "image", "B": "image"}}}, i.err
}

func newStarter(t *testing.T, p *pool, d *driver) *Starter {
	return &Starter{
		RunDir: t.TempDir(), Driver: d, Images: images{}, Admission: NewAdmission(1024, p),
		Network: Network{
			Subnet: netip.MustParsePrefix("10.0.2.0/24"), First: netip.MustParseAddr("10.0.2.100"),
			Gateway: netip.MustParseAddr("10.0.2.2"), DNS: netip.MustParseAddr("10.0.2.3"),
		},
		Deadlines: Deadlines{Image: time.Minute, Wire: time.Minute, Boot: time.Minute,
			Init: time.Minute},
		Reports: &Reports{Dir: t.TempDir(), Keep: 3},
		Log:     slog.New(slog.DiscardHandler),
	}
}
