package image

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fastiov/fastiov/node-agent/failpoint"
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

// How much more an image may be unpacked than as it is sent: six times as much, or half of needed.
const unpackedTimes = 6

// contentOf returns how much an image may be unpacked of which so many bytes are sent.
func contentOf(sent int64) int64 {
	return min(max(needed/2, unpackedTimes*sent), oci.MaxContent)
}

// pull makes a runtime of the OCI image that a reference stands for now, and takes its entry into
// use.
func (c *Cache) pull(ctx context.Context, key asked, p *pulling) (Runtime, func(), error) {
	if c.Policy.never {
		return Runtime{}, nil, oci.NotHere(key.ref)
	}
	begin := time.Now()
	finding, cancel := context.WithTimeout(ctx, pullDeadline)
	defer cancel()
	image, err := c.Source.Find(finding, key.ref, key.namespace)
	if err != nil {
		return Runtime{}, nil, err
	}
	defer image.Close()
	p.begin(image, time.Since(begin))
	failpoint.Hit(failpoint.PullFound)
	ctx, end := context.WithTimeout(ctx,
		pullDeadline+time.Duration(image.Bytes/slowestLine)*time.Second)
	defer end()
	return c.bringImage(ctx, image, key, false, p)
}

// bringImage makes a runtime of an image and gives it its name. The entry is found by the
// repository and the digest of the manifest: what comes of the image is kept for no other, and
// whoever builds one holds up nobody who asks another registry for it.
func (c *Cache) bringImage(ctx context.Context, image *oci.Image, key asked, loaded bool,
	p *pulling) (Runtime, func(), error) {
	content := contentOf(image.Bytes)
	layers := &brought{}
	defer func() { layers.free() }()
	dir, release, err := c.take(ctx, recipe{
		name: key.ref, inputs: []string{"oci 4", image.Repository, image.Digest},
		needs: content, sealed: true,
		build: func(ctx context.Context, dir string, say func(string, ...any)) (err error) {
			defer p.tell(say)()
			cell := filepath.Join(dir, "cell")
			if layers, err = c.layersOf(ctx, image, cell, content, p); err != nil {
				return err
			}
			begin := time.Now()
			defer func() { p.merged(time.Since(begin)) }()
			return c.mergeRoot(ctx, image, dir, layers)
		},
	})
	if err != nil {
		layers.free()
		defer c.evict(c.limit) // its layers came, too
		if refused := (*oci.Refusal)(nil); errors.As(err, &refused) && !refused.Passing() {
			c.drop(layers.keys)
		}
		return Runtime{}, nil, err
	}
	r, err := RuntimeIn(dir)
	if err == nil {
		err = c.name(ctx, key, func(n *Name) {
			n.Digest, n.Entry = image.Digest, filepath.Base(dir)
			n.At, n.Loaded = c.pulls.now(), loaded
		})
	}
	if err != nil {
		release()
		return Runtime{}, nil, err
	}
	return r, release, nil
}

// layersOf brings the layers of an image, while its configuration is looked at. If either is bad,
// the other is not waited for.
func (c *Cache) layersOf(ctx context.Context, image *oci.Image, cell string, content int64,
	p *pulling) (layers *brought, err error) {
	group, ctx := errgroup.WithContext(ctx)
	var diffIDs []string
	group.Go(func() (err error) {
		diffIDs, err = image.Inspect(ctx, cell)
		return err
	})
	group.Go(func() (err error) {
		layers, err = c.bringLayers(ctx, image, content, p)
		return err
	})
	if err := group.Wait(); err != nil {
		return layers, err
	}
	return layers, image.Verify(diffIDs, layers.about, content)
}

// mergeRoot fills a root's entry.
func (c *Cache) mergeRoot(
	ctx context.Context, image *oci.Image, dir string, layers *brought,
) error {
	ours := &turn{turns: c.pulls.turns, whose: whose(image)}
	_, leave, err := ours.Take(ctx)
	if err != nil {
		return err
	}
	defer ours.end()
	defer leave()
	program, err := image.Merge(ctx, filepath.Join(dir, RootName), layers.about, layers.dirs(c))
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.PullMerged)
	config, err := json.Marshal(program)
	if err != nil {
		return err
	}
	var seals []sealed
	for name, content := range map[string][]byte{
		ConfigName: config, layersName: []byte(strings.Join(layers.keys, "\n")), RootName: nil,
	} {
		if content != nil {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
				return err
			}
		}
		s, err := sealOf(dir, name)
		if err != nil {
			return err
		}
		seals = append(seals, s)
	}
	return writeSeal(dir, bootID(), seals...)
}
