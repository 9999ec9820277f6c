//go:build dashboards || page

package e2e

import (
	"context"

	"github.com/fastiov/fastiov/node-agent/startup"
)

// noImages is for an agent over sim: nothing boots there, so it accepts every image's name.
type noImages struct{}

func (noImages) Root(context.Context, string, string) (startup.Root, error) {
	return startup.Root{}, nil
}

func (noImages) Hold(context.Context, string) (release func(), err error) { return nil, nil }
