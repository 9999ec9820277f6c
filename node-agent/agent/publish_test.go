package agent

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// A publisher is a path that notes what is published.
type publisher struct {
	startup.NetPath
	published []startup.Publication
	refuses   error
}

func (p *publisher) Publish(_ startup.Lease, wanted startup.Publication) error {
	if p.refuses == nil {
		p.published = append(p.published, wanted)
	}
	return p.refuses
}

func TestPublish(t *testing.T) {
	a, d, v := newAgent(t)
	publish := func(change func(*api.PublishRequest)) codes.Code {
		req := &api.PublishRequest{Id: "x", Protocol: "udp", Port: 53, HostPort: 5353}
		change(req)
		_, err := a.Publish(t.Context(), req)
		return status.Code(err)
	}
	as := func(*api.PublishRequest) {}
	if got := publish(as); got != codes.NotFound {
		t.Errorf("of no sandbox: %v", got)
	}
	if _, err := start(t, a, "x"); err != nil {
		t.Fatal(err)
	}
	if got := publish(as); got != codes.FailedPrecondition {
		t.Errorf("of one with a VF: %v", got)
	}
	path := &publisher{NetPath: netvf.Path{Pool: v}}
	a.Starter.Admission = startup.NewAdmission(1024, path)
	for what, change := range map[string]func(*api.PublishRequest){
		"another protocol":        func(r *api.PublishRequest) { r.Protocol = "sctp" },
		"no port":                 func(r *api.PublishRequest) { r.Port = 0 },
		"a port that is none":     func(r *api.PublishRequest) { r.Port = 1 << 16 },
		"a service's of the host": func(r *api.PublishRequest) { r.HostPort = 1023 },
		"a host's that is none":   func(r *api.PublishRequest) { r.HostPort = 1<<16 + 5353 },
	} {
		if got := publish(change); got != codes.InvalidArgument {
			t.Errorf("%s: %v", what, got)
		}
	}
	if got := publish(as); got != codes.OK {
		t.Error(got)
	}
	want := startup.Publication{Protocol: "udp", HostPort: 5353, Port: 53}
	if len(path.published) != 1 || path.published[0] != want {
		t.Errorf("published is %+v", path.published)
	}
	path.refuses = startup.ErrTaken
	if got := publish(as); got != codes.AlreadyExists {
		t.Errorf("a port that is taken: %v", got)
	}
	path.refuses = errors.New("no rules")
	if got := publish(as); got != codes.Internal {
		t.Errorf("a failure: %v", got)
	}
	d.boxes["x"].Close()
	waitGone(a)
}
