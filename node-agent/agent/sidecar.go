package agent

import (
	"fmt"
	"regexp"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/limits"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// sidecars returns the programs that a sandbox is to have beside the one that serves.
func (a *Agent) sidecars(req *api.StartRequest) (all []startup.Sidecar, err error) {
	companion, can := a.Starter.Driver.(sandbox.Companion)
	if !can {
		return nil, fmt.Errorf("sandboxes of %s run one program, and this one is to have %d; use "+
			"a node with --sandbox containerd", a.Driver, 1+len(req.Sidecars))
	}
	if err := companion.TakesSidecars(req.Handler); err != nil {
		return nil, err
	}
	if n := len(req.Sidecars); n > limits.Sidecars {
		return nil, fmt.Errorf("%d sidecars; at most %d", n, limits.Sidecars)
	}
	mounts := mountsOf(req.Mounts)
	named := map[string]bool{}
	for _, s := range req.Sidecars {
		if named[s.Name] || !validName.MatchString(s.Name) {
			return nil, fmt.Errorf("a sidecar %.80q: want 1 to 63 of a-z, 0-9 and -, once in a "+
				"sandbox", s.Name)
		}
		named[s.Name] = true
		side := startup.Sidecar{Name: s.Name, Image: s.Image, Env: s.Env, Command: s.Command,
			Args: s.Args, Dir: s.Dir, User: s.User, Mounts: mountsOf(s.Mounts)}
		if side.User != "" {
			err = startup.ParseUser(side.User, &wire.Program{})
		}
		if err == nil {
			err = wire.CheckMounts(side.Mounts)
		}
		mounts = append(mounts, side.Mounts...)
		if err != nil {
			return nil, fmt.Errorf("the sidecar %s: %w", s.Name, err)
		}
		all = append(all, side)
	}
	return all, wire.CheckMounts(mounts) // of all together
}
