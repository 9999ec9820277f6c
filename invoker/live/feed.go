package live

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fastiov/fastiov/invoker/lasting"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// An Update is the data of one event.
type Update struct {
	Now     float64      `json:"t"`                 // time of the look, ms since 1970
	Hello   *Hello       `json:"hello,omitempty"`   // in the first update only
	Nodes   []NodeUpdate `json:"nodes,omitempty"`   // all of them, if one has changed
	VFs     []VFUpdate   `json:"vfs,omitempty"`     // those that changed
	Starts  []Start      `json:"starts,omitempty"`  // those that changed
	Express []Express    `json:"express,omitempty"` // of all nodes, if one has changed
	Waiting *int         `json:"waiting,omitempty"` // calls that wait in the invoker for a sandbox
}

// Hello holds what never changes.
type Hello struct {
	Version   string           `json:"version"`
	Namespace string           `json:"namespace"` // the reader's
	Stages    []timeline.Stage `json:"stages"`
	// how many ended starts of each node are kept; the oldest are dropped
	Keep int `json:"keep"`
}

// NodeUpdate is a node without its VFs and starts.
type NodeUpdate struct {
	Name      string `json:"name"`
	Driver    string `json:"driver"` // sim: simulated times
	Draining  bool   `json:"draining,omitempty"`
	Why       string `json:"why,omitempty"` // the node does not answer, and why
	MemoryMiB uint64 `json:"memory"`        // available in all, and given out
	UsedMiB   uint64 `json:"used"`
	Waiting   uint32 `json:"waiting"` // starts that wait for a VF or memory
}

// Express is the express path of a node's bridge.
type Express struct {
	Node    int    `json:"node"`
	Express uint64 `json:"express"` // packets
	Regular uint64 `json:"regular"`
	By      string `json:"by"`            // why they were regular, and how many
	Why     string `json:"why,omitempty"` // what keeps packets from it now
}

// VFUpdate describes a VF.
type VFUpdate struct {
	Node  int    `json:"node"`
	BDF   string `json:"bdf"`
	State string `json:"state"`           // empty: the VF is gone
	Owner string `json:"owner,omitempty"` // id of the sandbox that holds it
}

// Start is a cold start.
type Start struct {
	Number uint64 `json:"n"`
	// of its sandbox; like action and begin, it is sent only the first time
	ID     string  `json:"id,omitempty"`
	Action string  `json:"action,omitempty"` // only for calls of the reader's own namespace
	Begin  float64 `json:"begin,omitempty"`  // ms since 1970
	VF     string  `json:"vf,omitempty"`
	State  string  `json:"state,omitempty"` // starting, answered, ready, refused or failed
	// why it was refused or failed, or what makes the image that it waits for
	Why    string    `json:"why,omitempty"`
	Keep   int       `json:"k"`           // how many of the pieces sent before still hold
	Pieces []float64 `json:"s,omitempty"` // the pieces after those: stage, ms, stage, ms …
	// the stage since the last piece; -1: the start has ended
	Current *int `json:"c,omitempty"`
}

type vfName struct {
	node int
	bdf  string
}

// A reader reads the feed. It remembers what it has been sent.
type reader struct {
	namespace string
	version   string
	greeted   bool
	starts    map[uint64]*start
	nodes     []NodeUpdate
	vfs       map[vfName]VFUpdate
	express   []Express
	waiting   int
}

// update returns what p has and the reader does not; news is false if that is nothing.
func (r *reader) update(p *picture) (u Update, news bool) {
	u.Now = float64(p.at.UnixMicro()) / 1000
	if !r.greeted {
		r.greeted, r.waiting = true, -1
		u.Hello = &Hello{
			Version: r.version, Namespace: r.namespace, Stages: timeline.Order, Keep: keep,
		}
	}
	u.Nodes = r.newNodes(p)
	vfs := map[vfName]VFUpdate{}
	starts := make(map[uint64]*start, len(r.starts))
	for i, n := range p.nodes {
		for _, v := range n.status.Vfs {
			name, vf := vfName{i, v.Bdf}, VFUpdate{
				Node: i, BDF: v.Bdf, State: v.State, Owner: v.Owner,
			}
			if vfs[name] = vf; r.vfs[name] != vf {
				u.VFs = append(u.VFs, vf)
			}
		}
		for _, s := range n.starts {
			starts[s.number] = s
			if before := r.starts[s.number]; before != s {
				if told, differs := r.tell(before, s); differs {
					u.Starts = append(u.Starts, told)
				}
			}
		}
	}
	for name := range r.vfs {
		if _, there := vfs[name]; !there {
			u.VFs = append(u.VFs, VFUpdate{Node: name.node, BDF: name.bdf})
		}
	}
	r.vfs, r.starts = vfs, starts
	if now := expressOf(p); !slices.Equal(now, r.express) {
		r.express, u.Express = now, now
	}
	if r.waiting != p.waiting {
		r.waiting = p.waiting
		u.Waiting = &p.waiting
	}
	return u, u.Hello != nil || u.Nodes != nil || u.VFs != nil || u.Starts != nil ||
		u.Express != nil || u.Waiting != nil
}

// expressOf returns the express paths of the nodes that have one.
func expressOf(p *picture) (all []Express) {
	for i, n := range p.nodes {
		told := n.status.Express
		if told == nil {
			continue
		}
		e := Express{Node: i, Express: told.Packets["express"],
			Why: strings.Join(told.Refused, "; ")}
		var by []string
		for path, packets := range told.Packets {
			if path != "express" && packets > 0 {
				e.Regular += packets
				by = append(by, path)
			}
		}
		slices.SortFunc(by, func(a, b string) int {
			return cmp.Or(cmp.Compare(told.Packets[b], told.Packets[a]), cmp.Compare(a, b))
		})
		for i, path := range by {
			by[i] = fmt.Sprintf("%s %d", path, told.Packets[path])
		}
		e.By = strings.Join(by, ", ")
		all = append(all, e)
	}
	return all
}

// newNodes returns all nodes, if one has changed.
func (r *reader) newNodes(p *picture) []NodeUpdate {
	nodes := make([]NodeUpdate, len(p.nodes))
	same := len(nodes) == len(r.nodes)
	for i, n := range p.nodes {
		nodes[i] = NodeUpdate{
			Name: n.name, Driver: n.status.Driver, Draining: n.status.Draining, Why: n.why,
			MemoryMiB: n.status.MemoryMib, UsedMiB: n.status.MemoryReservedMib,
			Waiting: n.status.Waiting,
		}
		same = same && nodes[i] == r.nodes[i]
	}
	if same {
		return nil
	}
	r.nodes = nodes
	return nodes
}

// tell returns how a start differs from what the reader has of it. A nil before means that the
// reader has nothing of it.
func (r *reader) tell(before, now *start) (told Start, differs bool) {
	told.Number = now.number
	if before == nil || before.told.Id != now.told.Id { // before belongs to an agent that has gone
		told.ID, told.Begin = now.told.Id, now.begin
		if now.told.Call.GetNamespace() == r.namespace {
			told.Action = now.told.Call.GetAction()
		}
		before, differs = &start{}, true
		told.State, told.VF = now.told.State, now.told.Vf
		told.Current = &now.current
	} else {
		if before.told.State != now.told.State {
			told.State, differs = now.told.State, true
		}
		if before.told.Vf != now.told.Vf {
			told.VF, differs = now.told.Vf, true
		}
		if before.current != now.current {
			told.Current, differs = &now.current, true
		}
	}
	if now.told.State == "refused" || now.told.Call.GetNamespace() == r.namespace {
		told.Why = now.told.Why // another namespace's reason may name something of that namespace
		differs = differs || before.told.GetWhy() != told.Why
	}
	for told.Keep < min(len(before.pieces), len(now.pieces)) &&
		before.pieces[told.Keep] == now.pieces[told.Keep] {
		told.Keep++
	}
	for _, piece := range now.pieces[told.Keep:] {
		told.Pieces = append(told.Pieces, float64(piece.stage), piece.ms)
	}
	return told, differs || told.Pieces != nil || told.Keep < len(before.pieces)
}

const (
	slow      = 10 * time.Second // a reader that takes nothing for so long is dropped
	quiet     = 15 * time.Second // after so long without news, a reader gets an empty event
	readsLast = 5 * time.Minute  // after that, the reader must show its key again
)

// feed sends updates. A slow reader gets fewer: each update is made after the one before was sent.
func (p *Page) feed(w http.ResponseWriter, r *http.Request) {
	who := p.cfg.Admit(w, r)
	if who == nil {
		return
	}
	if !p.watch.join(who.Namespace) {
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusServiceUnavailable, "as many pages are open as may be; close one")
		return
	}
	defer p.watch.leave(who.Namespace)
	s := newStream(w, r, p.slow)
	defer s.answer.Limit()
	over := time.After(readsLast)
	beat := time.NewTimer(p.quiet)
	defer beat.Stop()
	me := &reader{namespace: who.Namespace, version: p.cfg.Version}
	for {
		picture, next := p.watch.picture()
		if !picture.at.IsZero() {
			if u, news := me.update(picture); news {
				if s.send(u) != nil {
					return
				}
				beat.Reset(p.quiet)
			}
		}
		select {
		case <-next:
		case <-beat.C:
			if s.beat() != nil {
				return
			}
			beat.Reset(p.quiet)
		case <-over:
			return
		case <-r.Context().Done():
			return
		case <-p.closed:
			return
		}
	}
}

// A stream sends server-sent events.
type stream struct {
	out    io.Writer
	zip    *gzip.Writer // nil: not compressed
	answer *lasting.Answer
}

func newStream(w http.ResponseWriter, r *http.Request, slow time.Duration) *stream {
	s := &stream{out: w, answer: lasting.Begin(w, slow)}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept-Encoding")
	if takesGzip(r) {
		h.Set("Content-Encoding", "gzip")
		s.zip = gzip.NewWriter(w)
		s.out = s.zip
	}
	return s
}

func (s *stream) send(u Update) error {
	content, err := json.Marshal(u)
	if err != nil {
		panic(err) // no number is NaN or infinite, and texts can always be marshalled
	}
	return s.write(append(append([]byte("data: "), content...), "\n\n"...))
}

func (s *stream) beat() error { return s.write([]byte(":\n\n")) }

func (s *stream) write(event []byte) error {
	return s.answer.Send(func() error {
		if _, err := s.out.Write(event); err != nil || s.zip == nil {
			return err
		}
		return s.zip.Flush()
	})
}
