package agent

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// A confiner is a driver whose sandboxes are processes, each in a room.
type confiner interface {
	Confinement() string
	MadeOnPath() int64
}

// Status implements api.NodeServer.
func (a *Agent) Status(_ context.Context, req *api.StatusRequest) (*api.StatusReply, error) {
	used, total, waiting := a.Starter.Admission.Usage()
	reply := &api.StatusReply{
		Version: a.Version, Driver: a.Driver,
		MemoryMib: uint64(total), MemoryReservedMib: uint64(used), Waiting: uint32(waiting),
		OverheadMib: uint32(a.Starter.OverheadMiB),
	}
	if c, ok := a.Starter.Driver.(confiner); ok {
		reply.Confinement = c.Confinement()
	}
	a.mu.Lock()
	reply.Draining = a.draining
	a.mu.Unlock()
	if a.Images != nil {
		reply.Images = a.Images()
	}
	if a.VFs != nil {
		for _, v := range a.VFs.Snapshot() {
			home := string(v.Home)
			if a.Netdevs {
				home = "" // it is for sandboxes
			}
			reply.Vfs = append(reply.Vfs, &api.VF{
				Bdf: v.BDF, State: string(v.State), Generation: v.Generation,
				Owner: v.Owner.String(), Kind: string(v.Owner.Kind),
				ResetFailures: uint32(v.ResetFailures), Pf: v.PF, Mac: v.MAC,
				SinceNs: v.Since.UnixNano(), Reason: v.Reason, Home: home,
			})
		}
	}
	if a.Express != nil {
		s, err := a.Express()
		if err != nil {
			return nil, err
		}
		reply.Express = &api.Express{Bridge: s.Bridge, Answered: s.Answered, Others: s.Others,
			Tcp: s.TCP, Refused: s.Refused, Packets: s.Packets}
	}
	live := a.sandboxesOf(reply, req.Brief)
	if !req.Brief {
		if a.Cache != nil {
			holds, limit := a.Cache()
			reply.CacheMib, reply.CacheLimitMib = uint64(holds>>20), uint64(limit>>20)
		}
		reply.Leftovers = a.leftovers(live)
	}
	return reply, nil
}

// sandboxesOf adds each sandbox to a reply, or to a brief one those that are being adopted, and
// returns the ids of all.
func (a *Agent) sandboxesOf(reply *api.StatusReply, brief bool) (live map[string]bool) {
	live = map[string]bool{}
	a.mu.Lock()
	for id, e := range a.sandboxes {
		live[id] = true
		if brief && e.state != adopting {
			continue
		}
		told := e.status(id)
		told.Reason = cmp.Or(told.Reason, a.waitsFor(e), e.pulled())
		reply.Sandboxes = append(reply.Sandboxes, told)
	}
	a.mu.Unlock()
	slices.SortFunc(reply.Sandboxes, func(x, y *api.Sandbox) int {
		return strings.Compare(x.Id, y.Id)
	})
	return live
}

// leftovers returns what belongs to no sandbox, neither to one in live nor to one that is known
// after the look at the machine: its start may have entered meanwhile.
func (a *Agent) leftovers(live map[string]bool) []string {
	found := append(a.Starter.Leftovers(live), a.Starter.Driver.Leftovers(live)...)
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(found, func(left string) bool {
		return a.sandboxes[sandboxIn(left)] != nil
	})
}

// sandboxIn returns the id of the sandbox that a leftover is of: its line ends with it, or with a
// name of a part of that sandbox, as in id.part.
func sandboxIn(left string) string {
	id, _, _ := strings.Cut(left[strings.LastIndexAny(left, " /")+1:], ".")
	return id
}

// pulled returns what the pull of a sandbox's image did, if its start waited for one.
func (e *entry) pulled() string {
	if e.st == nil || e.st.Pull == nil {
		return ""
	}
	return e.st.Pull.String()
}

// waitsFor returns what is being done to make the image of a sandbox that starts. The caller holds
// mu.
func (a *Agent) waitsFor(e *entry) string {
	if e == nil || e.state != starting || a.Building == nil {
		return ""
	}
	return a.Building(e.image)
}

func (e *entry) status(id string) *api.Sandbox {
	s := &api.Sandbox{
		Id: id, State: e.state, SinceNs: e.since.UnixNano(), Reason: e.reason, Image: e.image,
		StartedNs: e.started.UnixNano(), Adopted: e.adopted,
		Pid: int32(e.pid), MemoryMib: uint32(e.spec.MemoryMiB), Vf: e.spec.NIC.Device(),
	}
	return s
}

// how returns the metric labels of a start.
func (a *Agent) how(st *startup.Started) metrics.Start {
	how := metrics.Start{Sandbox: a.Driver, NetPath: "none", FastIOV: a.FastIOV}
	if st.Spec.NIC != nil {
		how.NetPath = st.Spec.NIC.Kind
	}
	return how
}

func (a *Agent) startReply(id string, st *startup.Started) *api.StartReply {
	how := a.how(st)
	r := &api.StartReply{
		Id: id, Driver: how.Sandbox, NetPath: how.NetPath, Fastiov: how.FastIOV,
		GuestKernel: a.GuestKernel,
		InitStatus:  int32(st.InitStatus), InitReply: st.InitReply, Spans: spans(st.Spans),
		Mounts: uint32(len(st.Spec.Program.Mounts)), Sidecars: uint32(len(st.Spec.Sidecars)),
	}
	for _, f := range st.Footprints {
		r.Memory = append(r.Memory, footprint(f))
	}
	if p := st.Pull; p != nil {
		r.Pull = &api.Pull{Received: p.Received, Layers: int32(p.Layers), Fetched: int32(p.Fetched),
			WaitedNs: int64(p.Waited)}
	}
	if n := st.Spec.NIC; n != nil {
		r.Nic, r.Mac, r.Address = n.Device(), n.MAC, n.Address.Addr().String()
	}
	return r
}

func footprint(f timeline.Footprint) *api.Footprint {
	return &api.Footprint{At: string(f.At), Resident: f.Resident, Zeroed: f.Zeroed,
		WaitedNs: int64(f.Waited)}
}

func gateReply(g timeline.Gate) *api.Gate {
	r := &api.Gate{Open: g.Open, Held: uint32(g.Held), Dropped: uint32(g.Dropped),
		IdleNs: int64(g.Idle), Spans: spans(g.Spans)}
	if g.Open {
		r.OpenedNs = g.Opened.UnixNano()
	}
	if !g.First.IsZero() {
		r.FirstNs = g.First.UnixNano()
	}
	if g.Memory != nil {
		r.Memory = footprint(*g.Memory)
	}
	return r
}

func spans(list []timeline.Span) []*api.Span {
	all, out := make([]api.Span, len(list)), make([]*api.Span, len(list))
	for i, s := range list {
		span := &all[i]
		span.Stage, span.BeginNs, span.ErrorNs = string(s.Stage), s.Begin.UnixNano(), int64(s.Error)
		if !s.End.IsZero() {
			// The clock may be set meanwhile, so the length is taken from monotonic times.
			span.EndNs = span.BeginNs + int64(s.End.Sub(s.Begin))
		}
		out[i] = span
	}
	return out
}

func logLines(lines []wire.LogLine) []*api.LogLine {
	out := make([]*api.LogLine, len(lines))
	for i, l := range lines {
		out[i] = logLine(l)
	}
	return out
}

func logLine(l wire.LogLine) *api.LogLine {
	return &api.LogLine{TimeNs: l.Time.UnixNano(), Stream: l.Stream, Text: l.Text,
		Sidecar: l.Sidecar}
}
