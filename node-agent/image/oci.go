package image

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// defaultSource returns the registries that images come from unless the operator says otherwise.
func (c *Cache) defaultSource() *oci.Source {
	registries, err := oci.ParseRegistries(oci.DefaultRegistries)
	if err != nil {
		panic(err) // they are constants
	}
	source := &oci.Source{Fetched: func(bytes int64) { c.CountFetched("registry", bytes) }}
	source.Allow(registries, nil)
	return source
}

// pull makes a runtime of the OCI image that ref stands for now, and takes its entry into use. The
// entry is found by the repository and the digest of the manifest: what comes of the image is
// kept for no other, and whoever builds one holds up nobody who asks another registry for it.
func (c *Cache) pull(ctx context.Context, ref, namespace string) (Runtime, func(), error) {
	image, err := c.Source.Find(ctx, ref, namespace)
	if err != nil {
		return Runtime{}, nil, err
	}
	defer image.Close()
	const unpacked = 6 // times as much as was sent, at most; where little was sent, half of needed
	content := max(needed/2, unpacked*image.Bytes)
	dir, release, err := c.take(ctx, recipe{
		name: ref, inputs: []string{"oci 3", image.Repository, image.Digest},
		needs: 2 * content, // as it is unpacked, and as an image
		build: func(ctx context.Context, dir string, say func(string, ...any)) error {
			p, err := image.Unpack(ctx, filepath.Join(dir, RootName), content, say)
			if err != nil {
				return err
			}
			config, err := json.Marshal(p)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, ConfigName), config, 0o644)
		},
	})
	if err != nil {
		return Runtime{}, nil, err
	}
	r, err := RuntimeIn(dir)
	if err != nil {
		release()
		return Runtime{}, nil, err
	}
	return r, release, nil
}
