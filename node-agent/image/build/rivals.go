package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"

	"gopkg.in/yaml.v3"

	"github.com/fastiov/fastiov"
	"github.com/fastiov/fastiov/node-agent/hypervisor"
)

const containerdModule = "github.com/containerd/containerd/v2"

// Containerd returns the folder of a containerd and its ctr, in the version that versions.yaml
// names, to compare with. It builds them if the cache does not have them.
func (b *Builder) Containerd(ctx context.Context) (dir, release string, err error) {
	var v struct{ Containerd string }
	if err := yaml.Unmarshal(fastiov.VersionsYAML, &v); err != nil {
		panic("versions.yaml: " + err.Error())
	}
	dir, err = b.GetLarge(ctx, "containerd", []string{v.Containerd, runtime.GOARCH}, 1<<30,
		func(ctx context.Context, dir string, say func(string, ...any)) error {
			say("fetching and compiling %s@%s, which takes minutes", containerdModule, v.Containerd)
			args := []string{"install", "-trimpath", "-ldflags=-s -w"}
			for _, program := range []string{"containerd", "ctr"} {
				args = append(args, containerdModule+"/cmd/"+program+"@"+v.Containerd)
			}
			cmd := command(ctx, "go", args...)
			cmd.Dir = dir // in no module: versions are the module's own
			cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOTOOLCHAIN=auto")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, lastLine(out))
			}
			return nil
		})
	return dir, v.Containerd, err
}

const mkfs = "mkfs.erofs"

// MkfsEROFS returns a folder with a mkfs.erofs that reads archives, which Debian 12's does not: the
// newer release's, with its loader and libraries.
func (b *Builder) MkfsEROFS(ctx context.Context) (dir string, err error) {
	from := hostVersions()
	return b.Get(ctx, mkfs, []string{"1", from.inputs()},
		func(ctx context.Context, dir string, say func(string, ...any)) error {
			debs, err := b.fetch(ctx, say, from, []string{"erofs-utils"})
			if err != nil {
				return err
			}
			t, err := unpacked(ctx, dir, say, debs)
			if err != nil {
				return err
			}
			defer t.Close()
			program := path.Join("/usr/bin", mkfs)
			files, err := programFiles(t, program)
			if err != nil {
				return err
			}
			root := filepath.Join(dir, "root")
			for _, name := range files {
				if err := export(t, name, root); err != nil {
					return err
				}
			}
			script := filepath.Join(dir, mkfs)
			err = os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nR=${0%%/*}/root\n"+
				"exec \"$R%s\" --inhibit-cache --library-path \"$R%s\" \"$R%s\" \"$@\"\n",
				hypervisor.Loader, hypervisor.Libraries, program), 0o755)
			if err != nil {
				return err
			}
			out, err := command(ctx, script, "--help").CombinedOutput()
			if err == nil && !bytes.Contains(out, []byte("--tar=")) {
				err = errors.New("it does not read archives")
			}
			if err != nil {
				return fmt.Errorf("%s of %s: %w: %s", mkfs, from.Suite, err, lastLine(out))
			}
			return nil
		})
}
