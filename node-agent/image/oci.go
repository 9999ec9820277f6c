package image

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// What a stranger's image may unpack to.
const (
	maxImageBytes = 4 << 30
	maxImageNames = 1 << 20
)

// pull makes a runtime of the OCI image ref. The image is known by its digest, so a tag that has moved gives a new entry.
func (c *Cache) pull(ctx context.Context, ref string) (Runtime, error) {
	reference, err := name.ParseReference(ref)
	if err != nil {
		return Runtime{}, fmt.Errorf("image %q is neither one of %s nor an OCI reference: %w", ref, strings.Join(RuntimeNames(), ", "), err)
	}
	img, err := remote.Image(reference, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithTransport(counted{c}), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
	if err != nil {
		return Runtime{}, fmt.Errorf("image %s: %w", ref, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return Runtime{}, fmt.Errorf("image %s: %w", ref, err)
	}
	dir, err := c.Get(ctx, ref, []string{"oci 2", digest.String()}, func(ctx context.Context, dir string, say func(string, ...any)) error {
		return flatten(ctx, img, dir, say)
	})
	if err != nil {
		return Runtime{}, err
	}
	return readRuntime(dir)
}

// counted is the way to registries, on which the cache counts what comes in.
type counted struct{ c *Cache }

func (t counted) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := remote.DefaultTransport.RoundTrip(r)
	if err == nil {
		resp.Body = &countedBody{resp.Body, t.c}
	}
	return resp, err
}

type countedBody struct {
	io.ReadCloser
	c *Cache
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.c.fetched("registry", int64(n))
	return n, err
}

// flatten lays an image's layers over each other and writes what remains.
func flatten(ctx context.Context, img v1.Image, dir string, say func(string, ...any)) error {
	p, user, err := programOf(img)
	if err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	t, err := rootfs.New(dir)
	if err != nil {
		return err
	}
	defer t.Close()
	t.Limit(maxImageBytes, maxImageNames)
	for n, layer := range layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		say("unpacking layer %d of %d", n+1, len(layers))
		if err := overlay(t, layer); err != nil {
			return fmt.Errorf("layer %d: %w", n+1, err)
		}
	}
	for _, mount := range []string{"dev", "proc", "sys", "run"} {
		if err := t.Mkdir(mount, 0o755); err != nil {
			return err
		}
	}
	if err := t.Mkdir("tmp", 0o1777); err != nil {
		return err
	}
	if p.UID, p.GID, err = lookUp(t, user); err != nil {
		return err
	}
	config, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, configName), config, 0o644); err != nil {
		return err
	}
	say("writing the root image")
	return t.WriteImage(filepath.Join(dir, rootName))
}

func overlay(t *rootfs.Tree, layer v1.Layer) error {
	r, err := layer.Uncompressed() // checks the digest as it is read
	if err != nil {
		return err
	}
	defer r.Close()
	return t.Layer(r)
}

// programOf is what the image says is to be started, and as whom.
func programOf(img v1.Image) (p wire.Program, user string, err error) {
	file, err := img.ConfigFile()
	if err != nil {
		return p, "", err
	}
	if file.OS != "linux" || file.Architecture != "amd64" {
		return p, "", fmt.Errorf("it is made for %s/%s, and microVMs are linux/amd64", file.OS, file.Architecture)
	}
	p = wire.Program{Command: append(file.Config.Entrypoint, file.Config.Cmd...), Dir: file.Config.WorkingDir, Env: map[string]string{}}
	if len(p.Command) == 0 {
		return p, "", fmt.Errorf("it names no command to run; give it an entrypoint")
	}
	for _, setting := range file.Config.Env {
		key, value, _ := strings.Cut(setting, "=")
		p.Env[key] = value
	}
	return p, file.Config.User, nil
}

// lookUp finds the numbers of an image's user, which is written user[:group], each by name or by number. The names are the image's own.
func lookUp(t *rootfs.Tree, user string) (uid, gid uint32, err error) {
	if user == "" {
		return 0, 0, nil
	}
	name, group, grouped := strings.Cut(user, ":")
	entry := accountOf(t, "etc/passwd", name)
	if uid, err = number(name, entry, 2); err != nil {
		return 0, 0, fmt.Errorf("its user %q is not in its /etc/passwd", name)
	}
	switch {
	case grouped:
		if gid, err = number(group, accountOf(t, "etc/group", group), 2); err != nil {
			return 0, 0, fmt.Errorf("its group %q is not in its /etc/group", group)
		}
	case len(entry) > 3:
		gid, err = number("", entry, 3)
	}
	return uid, gid, err
}

// accountOf is the line of /etc/passwd or /etc/group whose name or number is key.
func accountOf(t *rootfs.Tree, file, key string) []string {
	content, _ := t.Read(file) // without one there are only numbers
	for line := range strings.Lines(string(content)) {
		if entry := strings.Split(strings.TrimSpace(line), ":"); len(entry) > 2 && (entry[0] == key || entry[2] == key) {
			return entry
		}
	}
	return nil
}

// number is a field of an account, or the number that the name itself is.
func number(name string, entry []string, field int) (uint32, error) {
	if len(entry) > field {
		name = entry[field]
	}
	n, err := strconv.ParseUint(name, 10, 32)
	return uint32(n), err
}
