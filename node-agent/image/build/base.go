package build

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// unpacked returns a tree with packages, without what of them nobody needs.
func unpacked(
	ctx context.Context, dir string, say func(string, ...any), debs []deb,
) (*rootfs.Tree, error) {
	t, err := newBase(dir)
	if err != nil {
		return nil, err
	}
	say("unpacking %d packages", len(debs))
	if err := unpack(ctx, t, debs, noNoise); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// newBase returns an empty tree with the directories and links that packages expect to find.
func newBase(dir string) (*rootfs.Tree, error) {
	t, err := rootfs.New(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "proc",
		"sys", "dev", "run", "var", "mnt", "home"} {
		if err == nil {
			err = t.Mkdir(name, 0o755)
		}
	}
	for _, name := range []string{"tmp", "var/tmp"} {
		if err == nil {
			err = t.Mkdir(name, 0o1777)
		}
	}
	if err == nil {
		err = t.Mkdir("root", 0o700)
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err == nil {
			err = t.Symlink(name, "usr/"+name)
		}
	}
	if err == nil {
		err = t.Symlink("var/run", "/run")
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// isNoise reports whether a file of a package is of no use in an image.
func isNoise(name string) bool {
	for _, dir := range []string{"/usr/share/doc", "/usr/share/man", "/usr/share/info",
		"/usr/share/locale", "/usr/share/lintian", "/usr/share/bug"} {
		if strings.HasPrefix(name, dir+"/") {
			return true
		}
	}
	return false
}

func noNoise(name string) bool { return !isNoise(name) }

// accounts writes the user database, of users as name:id:home:shell, which maintainer scripts
// would have made.
func accounts(t *rootfs.Tree, users ...string) error {
	var passwd, group, shadow strings.Builder
	for _, user := range users {
		name, rest, _ := strings.Cut(user, ":")
		id, rest, _ := strings.Cut(rest, ":")
		fmt.Fprintf(&passwd, "%s:x:%s:%s::%s\n", name, id, id, rest)
		fmt.Fprintf(&group, "%s:x:%s:\n", name, id)
		fmt.Fprintf(&shadow, "%s:*:1::::::\n", name)
	}
	group.WriteString("tty:x:5:\n")
	return writeAll(t, map[string]string{
		"etc/passwd":        passwd.String(),
		"etc/group":         group.String(),
		"etc/shadow":        shadow.String(),
		"etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
		"etc/hosts":         "127.0.0.1 localhost\n::1 localhost\n",
	})
}

func writeAll(t *rootfs.Tree, files map[string]string) error {
	for name, content := range files {
		if err := t.Write(name, 0o644, []byte(content)); err != nil {
			return err
		}
	}
	return nil
}

// certificates joins the authorities of the package ca-certificates into the one file that
// programs read.
func certificates(t *rootfs.Tree) error {
	var bundle bytes.Buffer
	for _, name := range t.Glob("usr/share/ca-certificates/mozilla", "*.crt") {
		b, err := t.Read(name)
		if err != nil {
			return err
		}
		bundle.Write(b)
	}
	return t.Write("etc/ssl/certs/ca-certificates.crt", 0o644, bundle.Bytes())
}

// manifest is the list of packages that an image is made of.
func manifest(debs []deb) string {
	var b strings.Builder
	for _, d := range debs {
		fmt.Fprintf(&b, "%s %s\n", d.name, d.version)
	}
	return b.String()
}
