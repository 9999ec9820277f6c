package startup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/runtime"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A Request describes the sandbox that a caller wants started.
type Request struct {
	ID        string
	Image     string
	Namespace string // in whose name the image is pulled
	Init      []byte // body of the runtime's /init; empty: leave the runtime uninitialised
	MemoryMiB int
	Wait      time.Duration // how long it may queue for memory and a NIC
	Env       map[string]string
	Protocol  string   // the runtime's protocol; empty: its image's
	Port      uint16   // the runtime's port; 0: its image's
	Probe     string   // see wire.Program, and the next
	ProbedBy  []string // the command that probes it
	CPU       sandbox.CPU
	Command   []string // in place of the image's; empty: that
	Args      []string // in place of the image's arguments, or after Command
	Dir, User string   // empty: the image's
	Handler   string   // see sandbox.Spec
	Mounts    []wire.Mount
	Sidecars  []Sidecar
	Timeline  *timeline.Timeline // where others watch the start; nil: nobody does
}

// A Sidecar is a program that is to run beside the one that serves. Its fields are as a Request's.
type Sidecar struct {
	Name, Image   string
	Env           map[string]string
	Command, Args []string
	Dir, User     string
	Mounts        []wire.Mount
}

// Root is a runtime's root image and the program to start in it. It stays until it is released.
type Root struct {
	Path    string
	Layers  []string // files that are part of it
	Program wire.Program
	Pull    *timeline.Pull // that brought it; nil: it was here
	Release func()         // nil: there is nothing to be done
}

// Images finds the root images of runtimes.
type Images interface {
	Root(ctx context.Context, name, namespace string) (Root, error)
	// Hold keeps a root image that a sandbox has had since before this agent.
	Hold(ctx context.Context, path string) (release func(), err error)
}

// Deadlines bounds each phase.
type Deadlines struct {
	Image, Wire, Boot, Init time.Duration
}

// A Starter starts sandboxes on one node.
type Starter struct {
	RunDir      string // sandboxes live in RunDir/sandbox/<id>
	Driver      sandbox.Driver
	OverheadMiB int // memory that a sandbox needs beside its own
	Images      Images
	Speaker     runtime.Speaker
	Admission   *Admission
	Network     Network
	Deadlines   Deadlines
	Reports     *Reports
	Log         *slog.Logger
}

// A Started sandbox is one that can take /run. Release must be called once it has ended.
type Started struct {
	sandbox.Sandbox
	Runtime    runtime.Protocol
	Spec       sandbox.Spec
	PID        int // of its VMM; 0 where there is none
	Grant      *Grant
	Spans      []timeline.Span
	Footprints []timeline.Footprint
	Pull       *timeline.Pull // of its image; nil: that was here
	InitStatus int
	InitReply  []byte
	madeDir    bool
	LetGo      func() // of its root image; nil: there is nothing to be done
	release    sync.Once
}

// Start cold-starts a sandbox. When it fails, nothing of it is left but its report.
func (s *Starter) Start(ctx context.Context, req Request) (*Started, error) {
	var (
		tl = cmp.Or(req.Timeline, &timeline.Timeline{})
		st = &Started{Spec: sandbox.Spec{ID: req.ID, Dir: s.Dir(req.ID), MemoryMiB: req.MemoryMiB,
			CPU: req.CPU, Handler: req.Handler},
			InitStatus: http.StatusOK}
	)
	memory := s.Needs(req.MemoryMiB)
	phases := []phase{{
		name: "reserve", // a start that can never have room needs no image
		do:   func(context.Context) error { return s.Admission.Fits(memory) },
	}, {
		name: "image", stage: timeline.Image, deadline: s.Deadlines.Image,
		do: func(ctx context.Context) error {
			root, err := s.Images.Root(ctx, req.Image, req.Namespace)
			st.LetGo = root.Release
			st.Spec.Root, st.Spec.Layers, st.Pull = root.Path, root.Layers, root.Pull
			if err == nil {
				err = req.program(root.Program, &st.Spec.Program)
			}
			if err == nil && len(req.Sidecars) > 0 {
				err = s.sidecars(ctx, &req, st)
			}
			return err
		},
		undo: st.letGo,
	}, {
		name: "reserve", stage: timeline.Queue,
		do: func(ctx context.Context) (err error) {
			st.Grant, err = s.Admission.Acquire(ctx, req.ID, memory, req.Wait)
			return err
		},
		undo: func() {
			if st.Grant != nil {
				s.Admission.Release(st.Grant)
			}
		},
	}, {
		name: "wire", stage: timeline.CNI, deadline: s.Deadlines.Wire,
		do: func(context.Context) error { return s.wire(st) },
		undo: func() {
			if st.madeDir {
				os.RemoveAll(st.Spec.Dir)
			}
		},
	}, {
		name: "boot", deadline: s.Deadlines.Boot,
		do: func(ctx context.Context) (err error) {
			st.Sandbox, err = s.Driver.Start(ctx, st.Spec, tl, func(rec sandbox.Record) error {
				return s.own(st, rec)
			})
			if err == nil {
				st.Runtime, err = s.Speaker.In(st.Sandbox, st.Spec)
			}
			return err
		},
		undo: func() {
			if st.Sandbox != nil {
				st.Close()
			}
		},
	}, {
		name: "init", stage: timeline.AppInit, deadline: s.Deadlines.Init,
		do: func(ctx context.Context) (err error) {
			if err = st.Runtime.Ready(ctx); err == nil && len(req.Init) > 0 {
				st.InitStatus, st.InitReply, err = st.Runtime.Init(ctx, req.Init)
			}
			return err
		},
	}}
	err := run(ctx, tl, phases, func(err error) {
		if ctx.Err() == nil { // nothing went wrong with a start that was given up
			s.Reports.Write(st.Spec, tl.Spans(), err)
		}
		s.Blame(st, err) // as long as it is leased
	})
	st.Spans, st.Footprints = tl.Spans(), tl.Footprints()
	if err != nil {
		s.Log.Warn("start failed", "sandbox", req.ID, "err", err)
		return nil, err
	}
	return st, nil
}

// Needs returns the MiB that a sandbox with so much memory takes of the node. Whoever asks for
// sidecars has counted them with it.
func (s *Starter) Needs(memoryMiB int) int { return memoryMiB + s.OverheadMiB }

// program fills p with the image's program, and replaces what the request sets itself.
func (r *Request) program(image wire.Program, p *wire.Program) error {
	*p = image
	p.Env, p.Mounts = merge(image.Env, r.Env), r.Mounts
	p.Protocol = cmp.Or(r.Protocol, p.Protocol)
	p.Port = cmp.Or(r.Port, p.Port)
	p.Probe = cmp.Or(r.Probe, p.Probe)
	p.ProbeCommand = r.ProbedBy
	if err := replace(p, r.Command, r.Args, r.Dir, r.User); err != nil {
		return err
	}
	return runtime.Prepare(p)
}

// replace replaces in p, which its image says, what is not empty.
func replace(p *wire.Program, command, args []string, dir, user string) error {
	p.Dir = cmp.Or(dir, p.Dir)
	switch {
	case len(command) > 0:
		p.Command = slices.Concat(command, args)
	case len(args) > 0:
		p.Command = slices.Concat(p.Command[:len(p.Command)-p.Args], args)
	}
	if user == "" {
		return nil
	}
	return ParseUser(user, p)
}

// sidecars finds the images of a sandbox's sidecars, side by side, and what is to run of them.
func (s *Starter) sidecars(ctx context.Context, req *Request, st *Started) error {
	all := make([]sandbox.Sidecar, len(req.Sidecars))
	releases := make([]func(), len(all)+1)
	releases[len(all)] = st.LetGo
	st.LetGo = func() {
		for _, release := range releases {
			if release != nil {
				release()
			}
		}
	}
	finding, ctx := errgroup.WithContext(ctx)
	for i, side := range req.Sidecars {
		finding.Go(func() error {
			root, err := s.Images.Root(ctx, side.Image, req.Namespace)
			releases[i] = root.Release
			p := root.Program
			p.Env, p.Mounts = merge(p.Env, side.Env), side.Mounts
			if err == nil {
				err = replace(&p, side.Command, side.Args, side.Dir, side.User)
			}
			if err != nil {
				return fmt.Errorf("the sidecar %s: %w", side.Name, err)
			}
			all[i] = sandbox.Sidecar{Name: side.Name, Root: root.Path, Layers: root.Layers,
				Program: p}
			return nil
		})
	}
	st.Spec.Sidecars = all
	return finding.Wait()
}

// ParseUser gives p the user of "UID" or "UID:GID". A user without a group has the group 0.
func ParseUser(user string, p *wire.Program) error {
	uid, gid, grouped := strings.Cut(user, ":")
	if !grouped {
		gid = "0"
	}
	u, err := strconv.ParseUint(uid, 10, 32)
	g, other := strconv.ParseUint(gid, 10, 32)
	if err != nil || other != nil {
		return fmt.Errorf("user %.40q: want UID or UID:GID, as numbers", user)
	}
	p.UID, p.GID = uint32(u), uint32(g)
	return nil
}

// Initialised holds the runtime's answer to its function.
type Initialised struct {
	Status int
	Reply  []byte
	Spans  []timeline.Span
}

// Init hands a function to a sandbox that was started without one. If that fails, the caller ends
// the sandbox.
func (s *Starter) Init(ctx context.Context, st *Started, body []byte,
	tl *timeline.Timeline) (done Initialised, err error) {
	p := phase{name: "init", stage: timeline.AppInit, deadline: s.Deadlines.Init,
		do: func(ctx context.Context) error {
			done.Status, done.Reply, err = st.Runtime.Init(ctx, body)
			return err
		}}
	err = p.run(ctx, tl)
	done.Spans = tl.Spans()
	return done, err
}

// wire makes the sandbox's run directory, gives its NIC an address, and writes down which NIC is
// about to be handed to the sandbox.
func (s *Starter) wire(st *Started) error {
	if err := os.MkdirAll(filepath.Dir(st.Spec.Dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(st.Spec.Dir, 0o755); err != nil {
		return fmt.Errorf("run directory: %w; is a sandbox of that name running?", err)
	}
	st.madeDir = true
	if lease := st.Grant.NIC; lease != nil {
		address, err := s.Network.Address(lease.Number)
		if err != nil {
			return err
		}
		nic := lease.NIC
		nic.Address, nic.Gateway, nic.DNS = address, s.Network.Gateway, s.Network.DNS
		st.Spec.NIC = &nic
	}
	return WriteRecord(sandbox.Record{Spec: st.Spec})
}

// own writes the record by which a restarted agent can adopt the sandbox, and enters the sandbox as
// owner of its lease.
func (s *Starter) own(st *Started, rec sandbox.Record) error {
	if err := WriteRecord(rec); err != nil {
		return err
	}
	st.PID = rec.PID
	if st.Grant.NIC == nil {
		return nil
	}
	return s.Admission.path.Own(*st.Grant.NIC, rec)
}

// Blame tells the path to the network of a sandbox that ended with err, if its NIC was the cause.
func (s *Starter) Blame(st *Started, err error) {
	var fault *sandbox.NICFault
	if errors.As(err, &fault) && st.Grant != nil && st.Grant.NIC != nil {
		s.Admission.path.Fault(*st.Grant.NIC, fault.Why)
	}
}

// Release ends a started sandbox and gives back what it held. It may be called twice, even at once:
// the second call waits for the first.
func (s *Starter) Release(st *Started) {
	st.release.Do(func() {
		st.Close()
		os.RemoveAll(st.Spec.Dir)
		s.Admission.Release(st.Grant)
		st.letGo()
	})
}

func (st *Started) letGo() {
	if st.LetGo != nil {
		st.LetGo()
	}
}

// End ends what a former agent left of a sandbox.
func (s *Starter) End(spec sandbox.Spec) {
	s.Driver.End(spec)
	os.RemoveAll(spec.Dir)
}

// Dir is the run directory of the sandbox id.
func (s *Starter) Dir(id string) string { return filepath.Join(s.RunDir, "sandbox", id) }

func merge(base, over map[string]string) map[string]string {
	m := make(map[string]string, len(base)+len(over))
	maps.Copy(m, base)
	maps.Copy(m, over)
	return m
}
