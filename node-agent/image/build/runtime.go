package build

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/fastiov/fastiov/functions/runtimes"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
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

// runtimeOmits lists packages that others need for their maintainer scripts or documentation.
var runtimeOmits = []string{"perl*", "libperl*", "debconf*", "dpkg", "adduser", "ucf",
	"gcc-12-base", "tar", "openssl", "readline-common"}

var recipes = map[string]runtimeRecipe{
	"python:3": {
		packages: []string{"busybox-static", "ca-certificates", "python3.11"},
		omits:    runtimeOmits,
		proxy:    "/usr/lib/fastiov/proxy.py",
		source:   runtimes.Python3,
		// Isolated from what the environment says of Python, without the site packages there are
		// none of, unbuffered.
		command: []string{"/usr/bin/python3.11", "-I", "-S", "-u", "/usr/lib/fastiov/proxy.pyc"},
		finish:  compilePython,
	},
	// python:3 with the libraries that OpenWhisk's kind of that name is known for, those that
	// Debian has small enough.
	"python:3-ai": {
		packages: []string{"busybox-static", "ca-certificates", "python3.11", "python3-numpy",
			"python3-pil"},
		omits: append([]string{"python3", "python3-minimal", "libpython3-stdlib",
			"python3-pkg-resources"}, runtimeOmits...),
		proxy:  "/usr/lib/fastiov/proxy.py",
		source: runtimes.Python3,
		// with the site packages
		command: []string{"/usr/bin/python3.11", "-I", "-u", "/usr/lib/fastiov/proxy.pyc"},
		finish:  compilePythonLibraries,
	},
	"nodejs:18": {
		packages: []string{"busybox-static", "ca-certificates", "nodejs"},
		omits:    runtimeOmits,
		proxy:    "/usr/lib/fastiov/proxy.js",
		source:   runtimes.NodeJS,
		command:  []string{"/usr/bin/node", "/usr/lib/fastiov/proxy.js"},
	},
}

// runtimeApplets lists the busybox commands that an action may expect to find.
var runtimeApplets = []string{
	"awk", "basename", "cat", "cp", "cut", "date", "dirname", "env", "expr", "false", "find",
	"grep", "gunzip", "gzip", "head", "hostname", "id", "ip", "ln", "ls", "mkdir", "mktemp", "mv",
	"nslookup", "ping", "ps", "pwd", "rm", "sed", "sh", "sleep", "sort", "tail", "tar", "tee",
	"touch", "tr", "true", "uname", "uniq", "unzip", "wc", "wget", "which", "xargs",
}

// runtime makes a runtime of Debian's packages, and returns its entry.
func (b *Builder) runtime(ctx context.Context, name string, r runtimeRecipe) (string, error) {
	config, err := json.Marshal(wire.Program{Command: r.command, Env: r.env})
	if err != nil {
		return "", err
	}
	inputs := []string{
		"runtime 1", versions().inputs(), strings.Join(r.packages, " "),
		strings.Join(r.omits, " "), strings.Join(runtimeApplets, " "), r.proxy, string(r.source),
		string(config),
	}
	make := func(ctx context.Context, dir string, say func(string, ...any)) error {
		debs, err := b.fetch(ctx, say, versions(), r.packages)
		if err != nil {
			return err
		}
		packages := filepath.Join(dir, "packages")
		if err := os.WriteFile(packages, []byte(manifest(debs)), 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, image.ConfigName), config, 0o644); err != nil {
			return err
		}
		return r.build(ctx, dir, say, without(debs, r.omits...))
	}
	return b.Get(ctx, name, inputs, make)
}

func (r runtimeRecipe) build(
	ctx context.Context, dir string, say func(string, ...any), debs []deb,
) error {
	t, err := unpacked(ctx, dir, say, debs)
	if err != nil {
		return err
	}
	defer t.Close()
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
	return t.WriteImage(filepath.Join(dir, image.RootName))
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
