package containerd

import (
	"fmt"
	"path/filepath"

	"github.com/fastiov/fastiov/node-agent/guest/mounts"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// Renew implements sandbox.Renewer: a container has the folders themselves mounted.
func (b *box) Renew(sidecar string, all []wire.Mount) error {
	b.renewing.Lock()
	defer b.renewing.Unlock()
	if b.Cause() != nil { // or its folder would stay behind
		return sandbox.ErrEnded
	}
	if sidecar == "" {
		return mounts.Renew(filepath.Join(b.spec.Dir, "mounts"), all)
	}
	for _, s := range b.sidecars {
		if s.name == sidecar {
			return s.Renew("", all)
		}
	}
	return fmt.Errorf("there is no sidecar %.40q", sidecar)
}
