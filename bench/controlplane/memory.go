package controlplane

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Memory is the resident memory of `fastiov invoker`, whose agent is another process.
type Memory struct {
	Idle               Resident `json:"idle"` // a second after it answers for the first time
	IdleAgent          Resident `json:"idle_agent"`
	Full               Resident `json:"full"` // with the queued calls
	Queued             int      `json:"queued"`
	QueuedKiB          float64  `json:"queued_kib"` // per queued call
	QueuedAnonymousKiB float64  `json:"queued_anonymous_kib"`
}

// Resident is a process's memory: its own, and pages of files, mostly of the store and the binary.
type Resident struct {
	MiB          float64 `json:"mib"`
	AnonymousMiB float64 `json:"anonymous_mib"`
}

func (b *Bench) memory(ctx context.Context) (*Memory, error) {
	s, err := b.apart(ctx, []string{"--memory", "128"}, []string{"--metrics", "", "--wait", "1h"})
	if err != nil {
		return nil, err
	}
	defer s.stop()
	time.Sleep(time.Second)
	m := &Memory{Queued: 8000}
	if m.Idle, err = residentOf(s.cmd); err != nil {
		return nil, err
	}
	if m.IdleAgent, err = residentOf(s.agent); err != nil {
		return nil, err
	}
	if _, err := s.put(ctx, 1, `"memory":128,"timeout":300000`); err != nil {
		return nil, err
	}
	// The first call takes the node's only place, and stays.
	stay := load{s.address, 1, http.StatusAccepted,
		always(request(s.key, "POST", "actions/action-0", `{"sleep_ms":290000}`))}
	queue := load{s.address, connections, http.StatusAccepted,
		always(request(s.key, "POST", "actions/action-0", `{"name":"you"}`))}
	for _, l := range []struct {
		load
		n int
	}{{stay, 1}, {queue, m.Queued}} {
		t, err := l.times(ctx, l.n)
		if err == nil && t.failed > 0 {
			err = fmt.Errorf("queueing: %s", t.example)
		}
		if err != nil {
			return nil, err
		}
	}
	time.Sleep(time.Second)
	if n, err := s.recorded(); err != nil || n > 0 {
		return nil, fmt.Errorf("%d of those that should queue have ended (%v)", n, err)
	}
	if m.Full, err = residentOf(s.cmd); err != nil {
		return nil, err
	}
	m.QueuedKiB = (m.Full.MiB - m.Idle.MiB) * 1024 / float64(m.Queued)
	m.QueuedAnonymousKiB = (m.Full.AnonymousMiB - m.Idle.AnonymousMiB) * 1024 / float64(m.Queued)
	b.say("memory  %.1f MiB idle, its agent %.1f, %.1f MiB with %d queued", m.Idle.MiB,
		m.IdleAgent.MiB, m.Full.MiB, m.Queued)
	return m, nil
}

func residentOf(cmd *exec.Cmd) (r Resident, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		return r, err
	}
	for line := range strings.Lines(string(status)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f", &kib); n == 1 {
			r.MiB = kib / 1024
		}
		if n, _ := fmt.Sscanf(line, "RssAnon: %f", &kib); n == 1 {
			r.AnonymousMiB = kib / 1024
		}
	}
	return r, nil
}
