package image

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

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
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
	if err != nil {
		return Runtime{}, fmt.Errorf("image %s: %w", ref, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return Runtime{}, fmt.Errorf("image %s: %w", ref, err)
	}
	dir, err := c.Get(ctx, ref, []string{"oci 1", digest.String()}, func(ctx context.Context, dir string, say func(string, ...any)) error {
		return flatten(ctx, img, dir, say)
	})
	if err != nil {
		return Runtime{}, err
	}
	return readRuntime(dir)
}

// flatten lays an image's layers over each other and writes what remains.
func flatten(ctx context.Context, img v1.Image, dir string, say func(string, ...any)) error {
	r, err := runtimeOf(img)
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
	config, err := json.Marshal(r)
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

// runtimeOf is what the image says of itself.
func runtimeOf(img v1.Image) (Runtime, error) {
	file, err := img.ConfigFile()
	if err != nil {
		return Runtime{}, err
	}
	if file.OS != "linux" || file.Architecture != "amd64" {
		return Runtime{}, fmt.Errorf("it is made for %s/%s, and microVMs are linux/amd64", file.OS, file.Architecture)
	}
	r := Runtime{Command: append(file.Config.Entrypoint, file.Config.Cmd...), Dir: file.Config.WorkingDir, Env: map[string]string{}}
	if len(r.Command) == 0 {
		return Runtime{}, fmt.Errorf("it names no command to run; give it an entrypoint")
	}
	for _, setting := range file.Config.Env {
		key, value, _ := strings.Cut(setting, "=")
		r.Env[key] = value
	}
	return r, nil
}
