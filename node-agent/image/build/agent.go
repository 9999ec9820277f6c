package build

import (
	"context"
	"io"

	"github.com/fastiov/fastiov/node-agent/beside"
)

// guestAgent reads the guest agent's program.
func guestAgent(ctx context.Context) ([]byte, error) {
	program, err := beside.Init.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	return io.ReadAll(program)
}
