package agent

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// A renewer is a sandbox that takes files so.
type renewer struct {
	sandbox.Sandbox
	renew func(sidecar string, all []wire.Mount) error
}

func (r renewer) Renew(sidecar string, all []wire.Mount) error { return r.renew(sidecar, all) }

func TestRenew(t *testing.T) {
	a, _, _ := newAgent(t)
	if _, err := start(t, a, "x"); err != nil {
		t.Fatal(err)
	}
	renew := func(id, at string) codes.Code {
		mounts := []*api.Mount{{Path: "/first"},
			{Path: at, Files: []*api.File{{Name: "a", Data: []byte("b")}}}}
		_, err := a.Renew(t.Context(), &api.RenewRequest{Id: id, Sidecar: "side", Mounts: mounts})
		return status.Code(err)
	}
	for _, c := range []struct {
		id, at string
		want   codes.Code
	}{{"y", "/a", codes.NotFound}, {"x", "../a", codes.InvalidArgument},
		{"x", "/a", codes.Unimplemented}} {
		if got := renew(c.id, c.at); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	st, err := a.find(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	put := func(st *startup.Started) { // who watches the sandbox reads the former
		a.mu.Lock()
		defer a.mu.Unlock()
		a.sandboxes["x"].st = st
	}
	defer func() {
		put(st)
		if _, err := a.Stop(t.Context(), &api.StopRequest{Id: "x"}); err != nil {
			t.Error(err)
		}
	}()
	var fails error
	put(&startup.Started{Spec: st.Spec, Sandbox: renewer{st.Sandbox,
		func(sidecar string, all []wire.Mount) error {
			if sidecar != "side" || len(all) != 2 || len(all[0].Files) != 0 ||
				string(all[1].Files[0].Data) != "b" {
				t.Errorf("%s %+v", sidecar, all)
			}
			return fails
		}}})
	if got := renew("x", "/a"); got != codes.OK {
		t.Error(got)
	}
	if fails = errors.New("there is no such file"); renew("x", "/a") != codes.Aborted {
		t.Error("what failed is not told")
	}
	if fails = sandbox.ErrEnded; renew("x", "/a") != codes.NotFound {
		t.Error("its end is told as a fault")
	}
}
