package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

func span(stage string, from, to int64) *api.Span {
	s := &api.Span{Stage: stage, BeginNs: from * 1e6}
	if to > 0 {
		s.EndNs = to * 1e6
	}
	return s
}

func place(stage timeline.Stage) float64 { return float64(slices.Index(timeline.Order, stage)) }

// The style sheet has a colour for each stage, by its place, by day and by night.
func TestEveryStageHasAColour(t *testing.T) {
	sheet, err := files.ReadFile("page/page.css")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, found := range regexp.MustCompile(`--(s\d+): #`).FindAllSubmatch(sheet, -1) {
		counts[string(found[1])]++
	}
	for place, stage := range timeline.Order {
		if got := counts[fmt.Sprint("s", place)]; got != 2 {
			t.Errorf("%s, which is s%d, has %d colours, want 2", stage, place, got)
		}
	}
	if len(counts) != len(timeline.Order) {
		t.Errorf("%d colours for %d stages", len(counts), len(timeline.Order))
	}
}

func TestAReaderIsToldWhatChanges(t *testing.T) {
	n := newNode()
	n.status.Vfs = []*api.VF{
		{Bdf: "0000:01:10.0", State: "idle"}, {Bdf: "0000:01:10.1", State: "idle"},
	}
	call := &api.Call{Action: "ann/hello", Namespace: "ann"}
	n.starts = &api.StartsReply{NowNs: 30e6, Starts: []*api.ColdStart{
		{Number: 1, Id: "fn-1", Call: call, State: "starting", BeginNs: 1e6, Spans: []*api.Span{span("queue", 1, 10), span("vmm", 10, 0)}},
		{Number: 2, Id: "fn-2", Call: &api.Call{Action: "bob/secret", Namespace: "bob"}, State: "starting", BeginNs: 1e6},
	}}
	_, url := serve(t, nil, n)
	f := follow(t, url, "ann")
	u := f.next()
	if u.Hello == nil || u.Hello.Namespace != "ann" || u.Hello.Version != "test" ||
		len(u.Hello.Stages) != len(timeline.Order) || len(u.VFs) != 2 || *u.Waiting != 3 {
		t.Errorf("at first: %+v", u)
	}
	if len(u.Starts) != 2 || u.Starts[0].Action != "ann/hello" ||
		!slices.Equal(u.Starts[0].Pieces, []float64{place(timeline.Queue), 9}) ||
		*u.Starts[0].Current != int(place(timeline.VMM)) {
		t.Errorf("a start under way: %+v", u.Starts)
	}
	if other := u.Starts[1]; other.Action != "" ||
		*other.Current != int(place(timeline.Unattributed)) {
		t.Errorf("another's: %+v", other)
	}

	n.now(func() {
		waiting := &api.StartsReply{NowNs: n.starts.NowNs}
		for _, s := range n.starts.Starts {
			waiting.Starts = append(waiting.Starts, &api.ColdStart{
				Number: s.Number, Id: s.Id, Call: s.Call, State: s.State, BeginNs: s.BeginNs,
				Spans: s.Spans, Why: "builds python:3",
			})
		}
		n.starts = waiting
	})
	u = f.until(func(u Update) bool { return len(u.Starts) > 0 })
	if len(u.Starts) != 1 || u.Starts[0].Number != 1 || u.Starts[0].Why != "builds python:3" {
		t.Errorf("what its own start waits for, and another's: %+v", u.Starts)
	}

	n.now(func() {
		n.status = &api.StatusReply{
			Driver: "sim", Vfs: []*api.VF{{Bdf: "0000:01:10.0", State: "leased", Owner: "fn-1"}},
		}
		n.starts = &api.StartsReply{Ended: 1, NowNs: 60e6, Starts: []*api.ColdStart{
			{Number: 1, Id: "fn-1", Vf: "0000:01:10.0", Call: call, State: "answered", BeginNs: 1e6, EndNs: 50e6,
				Spans: []*api.Span{span("queue", 1, 10), span("vmm", 10, 40),
					span("4-vfio-dev", 20, 30), span("first-byte", 40, 50)}},
		}}
	})
	u = Update{}
	f.until(func(some Update) bool { // what is told of both may come one after the other
		u.VFs, u.Starts = append(u.VFs, some.VFs...), append(u.Starts, some.Starts...)
		return len(u.VFs) > 0 && len(u.Starts) > 0
	})
	if len(u.VFs) != 2 || u.VFs[0].Owner != "fn-1" || u.VFs[1] != (VFUpdate{BDF: "0000:01:10.1"}) {
		t.Errorf("VFs, of which one has gone: %+v", u.VFs)
	}
	want := []float64{place(timeline.VMM), 10, place(timeline.VFIODev), 10, place(timeline.VMM),
		10, place(timeline.FirstByte), 10}
	if s := u.Starts[0]; s.ID != "" || s.Keep != 1 || !slices.Equal(s.Pieces, want) ||
		*s.Current != -1 || s.State != "answered" || s.VF == "" {
		t.Errorf("its end: %+v, want pieces %v", s, want)
	}

	n.now(func() { n.err = errors.New("away") })
	if u := f.until(func(u Update) bool { return len(u.Nodes) > 0 }); u.Nodes[0].Why != "away" {
		t.Errorf("a node that does not answer: %+v", u.Nodes)
	}
}

// A reader is told how many packets of a bridge went express, and why the others did not.
func TestAReaderIsToldOfTheExpressPath(t *testing.T) {
	n := newNode()
	told := func(packets map[string]uint64, refused ...string) {
		n.now(func() {
			n.status = &api.StatusReply{Driver: "containerd",
				Express: &api.Express{Bridge: "fastiov0", Packets: packets, Refused: refused}}
		})
	}
	told(map[string]uint64{"express": 90, "no-entry": 4, "sample": 6, "rules": 0})
	_, url := serve(t, nil, n)
	f := follow(t, url, "ann")
	want := Express{Express: 90, Regular: 10, By: "sample 6, no-entry 4"}
	if u := f.next(); !slices.Equal(u.Express, []Express{want}) {
		t.Errorf("at first: %+v", u.Express)
	}
	told(map[string]uint64{"express": 90, "sample": 6, "no-entry": 4, "rules": 2},
		"ip filter FORWARD, rule 8")
	want.Regular, want.By, want.Why = 12, want.By+", rules 2", "ip filter FORWARD, rule 8"
	u := f.until(func(u Update) bool { return u.Express != nil })
	if !slices.Equal(u.Express, []Express{want}) {
		t.Errorf("then: %+v", u.Express)
	}
}

func TestNobodyLooksWhileNobodyReads(t *testing.T) {
	n := newNode()
	page, url := serve(t, nil, n)
	if n.asked != 0 {
		t.Errorf("asked %d times before anybody read", n.asked)
	}
	first, second := follow(t, url, "ann"), follow(t, url, "bob")
	first.next()
	second.next()
	page.watch.mu.Lock()
	stopped := page.watch.stopped
	page.watch.mu.Unlock()
	page.Close()
	<-stopped
	before := n.asked
	time.Sleep(3 * pace) // nothing happens during this time, and there is no event to wait for
	if n.asked != before {
		t.Error("the nodes are asked after the last reader has gone")
	}
}

func TestReadersAreBounded(t *testing.T) {
	page, url := serve(t, nil, newNode())
	var held []string
	defer func() {
		for _, namespace := range held {
			page.watch.leave(namespace)
		}
	}()
	join := func(namespace string, n int) {
		t.Helper()
		for range n {
			if !page.watch.join(namespace) {
				t.Fatal("refused too early")
			}
			held = append(held, namespace)
		}
	}
	refused := func(namespace string) {
		t.Helper()
		resp := request(t, "GET", url+"/ui/feed", namespace, "")
		if resp.StatusCode != http.StatusServiceUnavailable ||
			resp.Header.Get("Retry-After") == "" {
			t.Errorf("one of %s too many: HTTP %d", namespace, resp.StatusCode)
		}
	}
	join("ann", mostReads/2)
	refused("ann")
	join("bob", mostReads/4) // whom ann's do not keep out
	refused("bob")
	for n := mostReads / 8; n > 0; n /= 2 {
		join(fmt.Sprint("other", n), n)
	}
	refused("eve")
	page.watch.leave(held[0])
	held = held[1:]
	follow(t, url, "eve").next()
}

// A reader hears something now and then though nothing happens, and can tell that from a node that
// has gone.
func TestAReaderOfAnIdleNodeHearsABeat(t *testing.T) {
	n := newNode()
	page, url := serve(t, nil, n)
	page.quiet = 2 * pace
	f := follow(t, url, "ann")
	f.next()
	looks := func() (asked int) { n.now(func() { asked = n.asked }); return asked }
	for first := looks(); looks() < first+10; {
		runtime.Gosched()
	}
	n.now(func() { n.status = &api.StatusReply{Driver: "sim", Draining: true} })
	beats := 0
	for f.lines.Scan() && !strings.HasPrefix(f.lines.Text(), "data: ") {
		if f.lines.Text() == ":" {
			beats++
		}
	}
	if beats == 0 {
		t.Error("it has heard nothing for ten looks")
	}
}

// A page whose feed says nothing for too long hangs up, and one that hears beats does not.
func TestAPageGivesALostFeedUp(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		if os.Getenv("FASTIOV_CI") != "" {
			t.Fatal(err)
		}
		t.Skip("there is no node here, which runs the page's script")
	}
	script, err := filepath.Abs("page/feed.js")
	if err != nil {
		t.Fatal(err)
	}
	run := exec.Command(node, "--input-type=module", "-e", `
import {readFileSync} from 'node:fs'
const source = readFileSync(process.argv[1])
const {follow} = await import('data:text/javascript;base64,' + source.toString('base64'))
let left = 5
globalThis.fetch = async (path, {signal}) => new Response(new ReadableStream({
  start(out) { signal?.addEventListener('abort', () => out.error(signal.reason)) },
  pull(out) {
    if (left-- > 0) return new Promise(heard => setTimeout(heard, 200)).then(() => {
      out.enqueue(new TextEncoder().encode(left ? ':\n\n' : 'data: {"t":1}\n\n'))
    })
    setTimeout(() => process.exit(3), 20_000)
    return new Promise(() => {})
  },
}))
let took = 0
try {
  await follow('a:b', () => took++, 600)
  process.exit(4)
} catch (error) {
  console.log(error.name, took)
  process.exit(0)
}
`, script)
	out, err := run.CombinedOutput()
	if err != nil || string(out) != "AbortError 1\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// A reader that takes nothing is dropped. Meanwhile the nodes are polled as usual.
func TestASlowReaderIsDropped(t *testing.T) {
	n := newNode()
	page, url := serve(t, nil, n)
	page.slow = time.Second
	conn, err := net.Dial("tcp", url[len("http://"):])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn,
		"GET /ui/feed HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\n\r\n")
	reading := func() bool {
		page.watch.mu.Lock()
		defer page.watch.mu.Unlock()
		return page.watch.readers.Used() > 0
	}
	for !reading() {
		runtime.Gosched()
	}
	number := uint64(0)
	change := time.NewTicker(pace / 4)
	defer change.Stop()
	for end := time.After(30 * time.Second); reading(); {
		select {
		case <-end:
			t.Fatal("the slow reader is still there")
		case <-change.C:
			n.now(func() { // enough to fill the kernel's buffers of a connection
				reply := &api.StartsReply{NowNs: time.Now().UnixNano()}
				for range 2000 {
					number++
					reply.Starts = append(reply.Starts, &api.ColdStart{
						Number: number, Id: fmt.Sprintf("fn-%032d", number), State: "starting",
					})
				}
				n.starts = reply
			})
		}
	}
	n.now(func() {
		if n.asked < 5 {
			t.Errorf("the node was looked at %d times while a reader took nothing", n.asked)
		}
	})
}

// A page that adds up the updates arrives at what the node reported, whatever it reported before
// and however many looks the reader missed.
func TestUpdatesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &reader{namespace: "ann"}
		type known struct {
			pieces  []float64
			current int
			state   string
		}
		page := map[uint64]known{}
		for range rapid.IntRange(1, 8).Draw(t, "looks") {
			var starts []*start
			for number := range rapid.Uint64Range(0, 4).Draw(t, "starts") {
				told := &api.ColdStart{
					Number: number + 1, Id: "x",
					State:   rapid.SampledFrom([]string{"starting", "answered"}).Draw(t, "state"),
					BeginNs: 1e6,
				}
				for range rapid.IntRange(0, 5).Draw(t, "spans") {
					from := rapid.Int64Range(1, 100).Draw(t, "from")
					to := from + rapid.Int64Range(0, 50).Draw(t, "length")
					if rapid.Bool().Draw(t, "open") && told.State == "starting" {
						to = 0
					}
					told.Spans = append(told.Spans,
						span(string(rapid.SampledFrom(timeline.Order).Draw(t, "stage")), from, to))
				}
				if told.State == "answered" {
					told.EndNs = 200e6
				}
				starts = append(starts, newStart(0, told, 120e6, 0))
			}
			u, _ := r.update(&picture{
				at: time.Unix(1, 0), nodes: []seen{{status: &api.StatusReply{}, starts: starts}},
			})
			content, err := json.Marshal(u)
			if err != nil {
				t.Fatal(err)
			}
			var got Update
			if err := json.Unmarshal(content, &got); err != nil {
				t.Fatal(err)
			}
			for _, s := range got.Starts {
				k := page[s.Number]
				if s.ID != "" {
					k = known{}
				}
				k.pieces = append(slices.Clip(k.pieces[:2*s.Keep]), s.Pieces...)
				if s.Current != nil {
					k.current = *s.Current
				}
				if s.State != "" {
					k.state = s.State
				}
				page[s.Number] = k
			}
			for _, s := range starts {
				var want []float64
				for _, p := range s.pieces {
					want = append(want, float64(p.stage), p.ms)
				}
				if k := page[s.number]; !slices.Equal(k.pieces, want) || k.current != s.current ||
					k.state != s.told.State {
					t.Fatalf("start %d: the page has %+v, the node told %+v", s.number, k, s)
				}
			}
		}
	})
}
