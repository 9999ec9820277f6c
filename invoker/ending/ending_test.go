package ending

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/pool"
)

func TestWhoseFaultAFailedStartIs(t *testing.T) {
	for code, want := range map[codes.Code]activation.Status{
		codes.InvalidArgument: activation.DeveloperError,
		codes.Aborted:         activation.InternalError,
		codes.Internal:        activation.InternalError,
	} {
		err := &pool.CallError{Phase: pool.Starting, Err: status.Error(code, "why")}
		if got, timedOut := failedCall(err, activation.Limits{}); got.Status != want || timedOut {
			t.Errorf("%s: %v (timed out: %t), want %v", code, got.Status, timedOut, want)
		}
	}
}
