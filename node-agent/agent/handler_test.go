package agent

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

func TestADriverWithoutHandlersRefusesThem(t *testing.T) {
	a, _, _ := newAgent(t)
	_, err := a.Start(t.Context(), &api.StartRequest{Id: "x", MemoryMib: 128, Handler: "runsc"})
	if status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "sandboxes of fake have none") {
		t.Error(err)
	}
}

// A node whose driver runs one program in a sandbox refuses several before it looks for an image.
func TestADriverOfOneProgramRefusesSidecars(t *testing.T) {
	a, _, _ := newAgent(t)
	_, err := a.Start(t.Context(), &api.StartRequest{Id: "x", MemoryMib: 128,
		Sidecars: []*api.Sidecar{{Name: "side", Image: "none"}}})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(),
		"sandboxes of fake run one program, and this one is to have 2; use a node with") {
		t.Error(err)
	}
}

// A companion is a driver whose sandboxes may have sidecars.
type companion struct{ sandbox.Driver }

func (companion) TakesSidecars(string) error { return nil }

// What is wrong with a sidecar is said with its name.
func TestASidecarIsChecked(t *testing.T) {
	a, _, _ := newAgent(t)
	a.Starter.Driver = companion{a.Starter.Driver}
	fine := api.Sidecar{Name: "side", Image: "none"}
	for says, all := range map[string][]*api.Sidecar{
		`a sidecar "side": want`:        {&fine, &fine},
		`a sidecar "../x": want`:        {{Name: "../x"}},
		`the sidecar side: user "root"`: {{Name: "side", User: "root"}},
		`the sidecar side: a mount at "/etc`: {{Name: "side",
			Mounts: []*api.Mount{{Path: "/etc"}}}},
		"17 sidecars; at most 16": make([]*api.Sidecar, 17),
		"at least 336":            make([]*api.Sidecar, 17), // each shim has its part
	} {
		memory := uint32(512)
		if says == "at least 336" {
			memory = 335
		}
		_, err := a.Start(t.Context(),
			&api.StartRequest{Id: "x", MemoryMib: memory, Sidecars: all})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}
