package image

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/functions/runtimes"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// A Runtime is the root image of a function runtime and how it is started.
type Runtime struct {
	Root string `json:"-"` // path of the EROFS image
	wire.Program
}

const (
	rootName   = "root.erofs"
	configName = "config.json"
)

// A runtimeRecipe makes a runtime's root of Debian packages and our action proxy.
type runtimeRecipe struct {
	packages []string
	omits    []string
	proxy    string // where the proxy lies in the image
	source   []byte
	command  []string
	env      map[string]string
	finish   func(ctx context.Context, t *rootfs.Tree, tmp string) error
}

// runtimeOmits are what packages depend on for their maintainer scripts or their documentation.
var runtimeOmits = []string{"perl*", "libperl*", "debconf*", "dpkg", "adduser", "ucf", "gcc-12-base", "tar", "openssl", "readline-common"}

var recipes = map[string]runtimeRecipe{
	"python:3": {
		packages: []string{"busybox-static", "ca-certificates", "python3.11"},
		omits:    runtimeOmits,
		proxy:    "/usr/lib/fastiov/proxy.py",
		source:   runtimes.Python3,
		// Isolated from what the environment says of Python, without the site packages there are none of, unbuffered.
		command: []string{"/usr/bin/python3.11", "-I", "-S", "-u", "/usr/lib/fastiov/proxy.pyc"},
		finish:  compilePython,
	},
	// python:3 with the libraries that OpenWhisk's kind of that name is known for, those that Debian has small enough.
	"python:3-ai": {
		packages: []string{"busybox-static", "ca-certificates", "python3.11", "python3-numpy", "python3-pil"},
		omits:    append([]string{"python3", "python3-minimal", "libpython3-stdlib", "python3-pkg-resources"}, runtimeOmits...),
		proxy:    "/usr/lib/fastiov/proxy.py",
		source:   runtimes.Python3,
		command:  []string{"/usr/bin/python3.11", "-I", "-u", "/usr/lib/fastiov/proxy.pyc"}, // with the site packages
		finish:   compilePythonLibraries,
	},
	"nodejs:18": {
		packages: []string{"busybox-static", "ca-certificates", "nodejs"},
		omits:    runtimeOmits,
		proxy:    "/usr/lib/fastiov/proxy.js",
		source:   runtimes.NodeJS,
		command:  []string{"/usr/bin/node", "/usr/lib/fastiov/proxy.js"},
	},
}

// runtimeApplets are the busybox commands that an action may expect to find.
var runtimeApplets = []string{"awk", "basename", "cat", "cp", "cut", "date", "dirname", "env", "expr", "false", "find", "grep", "gunzip", "gzip",
	"head", "hostname", "id", "ip", "ln", "ls", "mkdir", "mktemp", "mv", "nslookup", "ping", "ps", "pwd", "rm", "sed", "sh", "sleep", "sort",
	"tail", "tar", "tee", "touch", "tr", "true", "uname", "uniq", "unzip", "wc", "wget", "which", "xargs"}

// RuntimeNames are the runtimes made of Debian packages; any other name is an OCI reference.
func RuntimeNames() []string { return []string{"nodejs:18", "python:3", "python:3-ai"} }

// Runtime returns the runtime called name: one of RuntimeNames, or an OCI reference, whose image is
// pulled in nobody's name. It stays in use.
func (c *Cache) Runtime(ctx context.Context, name string) (Runtime, error) {
	if isReference(name) {
		r, _, err := c.Pull(ctx, name, "")
		return r, err
	}
	c.mu.Lock()
	r, ok := c.made[name]
	c.mu.Unlock()
	if ok {
		return r, nil
	}
	r, err := c.makeRuntime(ctx, name)
	if err == nil {
		c.mu.Lock()
		c.made[name] = r
		c.mu.Unlock()
	}
	return r, err
}

// runtimes are the names of those that are made or pulled.
func (c *Cache) runtimes() []string {
	refs := c.pulls.pulled()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(refs, maps.Keys(c.made)))))
}

// makeRuntime makes one of Debian's packages.
func (c *Cache) makeRuntime(ctx context.Context, name string) (Runtime, error) {
	r := recipes[name]
	config, err := json.Marshal(wire.Program{Command: r.command, Env: r.env})
	if err != nil {
		return Runtime{}, err
	}
	inputs := []string{"runtime 1", versions().inputs(), strings.Join(r.packages, " "), strings.Join(r.omits, " "),
		strings.Join(runtimeApplets, " "), r.proxy, string(r.source), string(config)}
	dir, err := c.Get(ctx, name, inputs, func(ctx context.Context, dir string, say func(string, ...any)) error {
		debs, err := c.fetch(ctx, say, r.packages)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "packages"), []byte(manifest(debs)), 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, configName), config, 0o644); err != nil {
			return err
		}
		return r.build(ctx, dir, say, without(debs, r.omits...))
	})
	if err != nil {
		return Runtime{}, err
	}
	return readRuntime(dir)
}

func (r runtimeRecipe) build(ctx context.Context, dir string, say func(string, ...any), debs []deb) error {
	t, err := newBase(dir)
	if err != nil {
		return err
	}
	defer t.Close()
	say("unpacking %d packages", len(debs))
	if err := unpack(ctx, t, debs, noNoise); err != nil {
		return err
	}
	if err := accounts(t, "root:0:/root:/bin/sh", "nobody:65534:/:/usr/sbin/nologin"); err != nil {
		return err
	}
	if err := certificates(t); err != nil {
		return err
	}
	if err := linkApplets(t, runtimeApplets); err != nil {
		return err
	}
	if err := t.Write(r.proxy, 0o644, r.source); err != nil {
		return err
	}
	if r.finish != nil {
		say("compiling the standard library")
		if err := r.finish(ctx, t, dir); err != nil {
			return err
		}
	}
	say("writing the root image")
	return t.WriteImage(filepath.Join(dir, rootName))
}

// linkApplets gives busybox's commands names of their own where no package brought one.
func linkApplets(t *rootfs.Tree, names []string) error {
	for _, name := range names {
		if len(t.Glob("usr/bin", name))+len(t.Glob("usr/sbin", name)) > 0 {
			continue
		}
		if err := t.Symlink("usr/bin/"+name, "busybox"); err != nil {
			return err
		}
	}
	return nil
}

// readRuntime opens a runtime's finished directory.
func readRuntime(dir string) (Runtime, error) {
	b, err := os.ReadFile(filepath.Join(dir, configName))
	if err != nil {
		return Runtime{}, err
	}
	r := Runtime{Root: filepath.Join(dir, rootName)}
	if err := json.Unmarshal(b, &r); err != nil {
		return Runtime{}, fmt.Errorf("%s: %w; remove %s to have it made anew", configName, err, dir)
	}
	return r, checkRoot(r.Root)
}

// maxFileName leaves room, in the 255 bytes that a file's name may have, for what is put around it.
const maxFileName = 200

// fileName makes a runtime's name fit for a file. The end of a long one gives way to a hash of it.
func fileName(name string) string {
	fit := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, name)
	if len(fit) > maxFileName {
		sum := hash([]string{name})
		fit = fit[:maxFileName-len(sum)-1] + "-" + sum
	}
	return fit
}
