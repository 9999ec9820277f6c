package live

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// Node is what the page asks of a node.
type Node interface {
	Starts(ctx context.Context, in *api.StartsRequest, opts ...grpc.CallOption) (*api.StartsReply, error)
	Status(ctx context.Context, in *api.StatusRequest, opts ...grpc.CallOption) (*api.StatusReply, error)
}

// Named is a node and what to call it.
type Named struct {
	Name string
	Node
}

const (
	pace      = 100 * time.Millisecond // between looks
	patience  = time.Second            // with a node that does not answer
	keep      = 256                    // starts that have ended, per node
	mostReads = 32                     // at once
)

// A watch looks at the nodes for as long as it has readers. What it saw is a picture, which nobody changes.
type watch struct {
	waiting func() int

	mu      sync.Mutex
	nodes   []*watched
	readers int
	now     *picture
	next    chan struct{} // closed when now is replaced
	stop    context.CancelFunc
	stopped chan struct{}
}

// A picture is what was seen at one look.
type picture struct {
	at      time.Time
	waiting int
	nodes   []seen
}

// What was seen of one node.
type seen struct {
	name   string
	why    string // it did not answer; the rest is what was seen last
	status *api.StatusReply
	starts []*start // those under way by number, those that have ended in that order
}

// A watched node. It is looked at by one goroutine.
type watched struct {
	Named
	place int
	ended uint64
	past  []*start // that have ended
	last  seen
}

func newWatch(nodes []Named, waiting func() int) *watch {
	w := &watch{waiting: waiting, now: &picture{}, next: make(chan struct{})}
	for i, n := range nodes {
		w.nodes = append(w.nodes, &watched{Named: n, place: i, last: seen{name: n.Name, status: &api.StatusReply{}}})
	}
	return w
}

// join lets one more read, unless too many do. The first one has to wait for the first look.
func (w *watch) join() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.readers == mostReads {
		return false
	}
	if w.readers++; w.readers == 1 {
		ctx, stop := context.WithCancel(context.Background())
		before := w.stopped // of the one that looks no more
		w.stop, w.stopped = stop, make(chan struct{})
		go w.run(ctx, before, w.stopped)
	}
	return true
}

func (w *watch) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.readers--; w.readers == 0 {
		w.stop()
		w.now = &picture{} // the next one is not to be shown what was long ago
	}
}

// picture is the newest one, and what is closed when there is a newer one. There may be none yet.
func (w *watch) picture() (now *picture, next <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, w.next
}

func (w *watch) run(ctx context.Context, before <-chan struct{}, stopped chan<- struct{}) {
	defer close(stopped)
	if before != nil {
		<-before
	}
	for _, n := range w.nodes {
		n.ended, n.past = 0, nil // while nobody looked they may have become others
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		w.show(ctx, w.look(ctx))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (w *watch) show(ctx context.Context, p *picture) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil { // nobody reads; a call that was cut off is no news
		return
	}
	w.now = p
	close(w.next)
	w.next = make(chan struct{})
}

func (w *watch) look(ctx context.Context) *picture {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p := &picture{waiting: w.waiting(), nodes: make([]seen, len(w.nodes))}
	var all sync.WaitGroup
	for i, n := range w.nodes {
		all.Go(func() { p.nodes[i] = n.look(ctx) })
	}
	all.Wait()
	p.at = time.Now()
	return p
}

func (n *watched) look(ctx context.Context) seen {
	nodeStatus, err := n.Status(ctx, &api.StatusRequest{Brief: true})
	var starts *api.StartsReply
	if err == nil {
		starts, err = n.Starts(ctx, &api.StartsRequest{After: n.ended})
	}
	if err != nil {
		n.ended, n.past = 0, nil // it may be another one that answers next
		n.last.why = status.Convert(err).Message()
		return n.last
	}
	if starts.Ended < n.ended { // another agent, which has told all of its own
		n.past = nil
	}
	n.ended = starts.Ended
	n.last = seen{name: n.Name, status: nodeStatus}
	ahead := time.Now().UnixNano() - starts.NowNs // of the node's clock, and the way
	var running []*start
	for _, told := range starts.Starts {
		s := newStart(n.place, told, starts.NowNs, ahead)
		if told.EndNs == 0 {
			running = append(running, s)
		} else {
			n.past = append(n.past, s)
		}
	}
	if extra := len(n.past) - keep; extra > 0 {
		n.past = append([]*start(nil), n.past[extra:]...)
	}
	n.last.starts = append(append(make([]*start, 0, len(n.past)+len(running)), n.past...), running...)
	return n.last
}
