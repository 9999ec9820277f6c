package agent

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

func TestADriverWithoutHandlersRefusesThem(t *testing.T) {
	a, _, _ := newAgent(t)
	_, err := a.Start(t.Context(), &api.StartRequest{Id: "x", MemoryMib: 128, Handler: "runsc"})
	if status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "sandboxes of fake have none") {
		t.Error(err)
	}
}
