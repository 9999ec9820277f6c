package live

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/share"
	"github.com/fastiov/fastiov/node-agent/api"
)

// Node is the part of a node's API that the page uses.
type Node interface {
	Starts(ctx context.Context, in *api.StartsRequest,
		opts ...grpc.CallOption) (*api.StartsReply, error)
	Status(ctx context.Context, in *api.StatusRequest,
		opts ...grpc.CallOption) (*api.StatusReply, error)
}

// Named is a node and its name.
type Named struct {
	Name string
	Node
}

const (
	pace      = 100 * time.Millisecond // between two looks
	patience  = time.Second            // how long a node may take to answer
	keep      = 256                    // ended starts per node
	mostReads = 32                     // readers at the same time; a namespace has a share of them
)

// A watch polls the nodes while it has readers. The result is a picture, which never changes.
type watch struct {
	waiting func() int

	mu      sync.Mutex
	nodes   []*watched
	readers *share.Whole
	of      map[string]*share.Part // by namespace, of those that read
	now     *picture
	next    chan struct{} // closed when now is replaced
	stop    context.CancelFunc
	stopped chan struct{}
}

// A picture is the result of one look.
type picture struct {
	at      time.Time
	waiting int
	nodes   []seen
}

// seen is the part of a picture about one node.
type seen struct {
	name   string
	why    string // why it did not answer; then the other fields are from an earlier look
	status *api.StatusReply
	starts []*start // the ended ones in order of their ends, then the running ones
}

// watched is a node that one goroutine polls.
type watched struct {
	Named
	place int
	ended uint64
	past  []*start // ended starts
	last  seen
}

func newWatch(nodes []Named, waiting func() int) *watch {
	w := &watch{
		waiting: waiting, readers: share.Of(mostReads), of: map[string]*share.Part{},
		now: &picture{}, next: make(chan struct{}),
	}
	for i, n := range nodes {
		w.nodes = append(w.nodes, &watched{
			Named: n, place: i, last: seen{name: n.Name, status: &api.StatusReply{}},
		})
	}
	return w
}

// join adds a reader, or returns false if there are too many, of all or of its namespace. The first
// reader has to wait for the first look.
func (w *watch) join(namespace string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	mine := w.of[namespace]
	if mine == nil {
		mine = &share.Part{}
	}
	if w.readers.Take(mine, 1) != nil {
		return false
	}
	w.of[namespace] = mine
	if w.readers.Used() == 1 {
		ctx, stop := context.WithCancel(context.Background())
		before := w.stopped // closed when the previous polling goroutine has ended
		w.stop, w.stopped = stop, make(chan struct{})
		go w.run(ctx, before, w.stopped)
	}
	return true
}

func (w *watch) leave(namespace string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	mine := w.of[namespace]
	if w.readers.Give(mine, 1); mine.Held() == 0 {
		delete(w.of, namespace)
	}
	if w.readers.Used() == 0 {
		w.stop()
		w.now = &picture{} // so that a new reader is not shown an old picture
	}
}

// picture returns the newest picture, and a channel that is closed when there is a newer one. The
// picture may be empty at first.
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
		n.ended, n.past = 0, nil // while nobody polled, another agent may have started
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
	// the last reader has gone; an interrupted call says nothing about the node
	if ctx.Err() != nil {
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
		n.ended, n.past = 0, nil // another agent may answer next
		n.last.why = status.Convert(err).Message()
		return n.last
	}
	if starts.Ended < n.ended { // another agent, whose ended starts are all in this answer
		n.past = nil
	}
	n.ended = starts.Ended
	n.last = seen{name: n.Name, status: nodeStatus}
	// how far our clock is ahead of the node's, plus the time that the answer took
	ahead := time.Now().UnixNano() - starts.NowNs
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
	n.last.starts = append(append(make([]*start, 0, len(n.past)+len(running)), n.past...),
		running...)
	return n.last
}
