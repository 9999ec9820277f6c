package image

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/fastiov/fastiov/node-agent/failpoint"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// A layer is an entry of its own, which roots share: its blob, its index, and what is known of it.
// It is found by its registry and the digest of what the registry sends. A registry that says that
// somebody may have a layer says it for itself alone.
const (
	layerName  = "layer"
	layerAbout = "layer.json"
	layersName = "layers" // of a root's entry: the keys of its layers, the lowest first
)

// flights are the layers that are being fetched, each once however many pulls wait for it.
type flights struct {
	mu    sync.Mutex
	under map[string]*flight // by the layer's key
}

// A flight is a layer that is being fetched. It goes on while anybody waits for it.
type flight struct {
	waiting int
	cancel  context.CancelFunc
	done    chan struct{}
	err     error
	release func()
}

// layersOf returns the keys of the layers that the entry in dir needs.
func layersOf(dir string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, layersName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return strings.Fields(string(b)), err
}

// needsOf returns these keys, each once.
func needsOf(dir string) ([]string, error) {
	keys, err := layersOf(dir)
	slices.Sort(keys)
	return slices.Compact(keys), err
}

// sound reports whether an entry, whose lock is taken, is intact and has its layers, which it takes
// into use. An error says that nobody could look.
func (c *Cache) sound(ctx context.Context, key string) (layers []func(), sound bool, err error) {
	if sound, err = c.intact(key); !sound || err != nil {
		return nil, sound, err
	}
	keys, err := layersOf(c.entry(key))
	for _, layer := range keys {
		if sound, err = c.hold(ctx, layer); !sound || err != nil {
			break
		}
		layers = append(layers, c.releaseOf(layer))
	}
	if !sound || err != nil {
		for _, release := range layers {
			release()
		}
		return nil, sound, err
	}
	return layers, true, nil
}

// brought are the layers of an image, in use until released.
type brought struct {
	keys    []string
	about   []oci.Layer
	release []func()
}

func (b *brought) dirs(c *Cache) (dirs []string) {
	for _, key := range b.keys {
		dirs = append(dirs, c.entry(key))
	}
	return dirs
}

func (b *brought) free() {
	for _, release := range b.release {
		if release != nil {
			release()
		}
	}
	b.release = nil
}

// bringLayers takes all layers of an image into use, and fetches those that are not here: all at
// once, as far as there is room, and the largest first, so that none is waited for at the end. All
// together may unpack to content.
func (c *Cache) bringLayers(ctx context.Context, image *oci.Image, content int64, p *pulling) (
	*brought, error) {
	layers := image.Layers()
	b := &brought{
		keys: make([]string, len(layers)), about: make([]oci.Layer, len(layers)),
		release: make([]func(), len(layers)),
	}
	order := make([]int, len(layers))
	for n, d := range layers {
		order[n] = n
		b.keys[n] = layerRecipe(image, d).key()
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(layers[b].Size - layers[a].Size) })
	rooms := oci.NewRooms(content)
	defer rooms.Close()
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range order {
		if slices.Index(b.keys, b.keys[n]) < n { // the same layer twice
			continue
		}
		group.Go(func() (err error) {
			b.release[n], err = c.bringLayer(ctx, image, n, rooms, p)
			if err == nil {
				b.about[n], err = aboutLayer(c.entry(b.keys[n]))
			}
			p.layerDone()
			return err
		})
	}
	err := group.Wait()
	for n, key := range b.keys {
		b.about[n] = b.about[slices.Index(b.keys, key)]
	}
	return b, err
}

func layerRecipe(image *oci.Image, d v1.Descriptor) recipe {
	return recipe{name: layerName, sealed: true,
		inputs: []string{"1", image.Registry(), d.Digest.String()}}
}

// bringLayer takes a layer into use. If another fetched it, the registry is asked whether we may
// have it; if another failed to, we try ourselves: with our credentials, from our repository.
func (c *Cache) bringLayer(ctx context.Context, image *oci.Image, n int, rooms *oci.Rooms,
	p *pulling) (release func(), err error) {
	r := layerRecipe(image, image.Layers()[n])
	began := false // the flight is of our making: its failure is ours
	ours := false  // we have fetched it ourselves
	r.build = func(ctx context.Context, dir string, _ func(string, ...any)) error {
		ours = true
		return c.fetchLayer(ctx, image, n, dir, rooms, p)
	}
	key := r.key()
	for {
		began, ours = false, false
		if held, err := c.hold(ctx, key); held || err != nil {
			if err == nil {
				release = c.releaseOf(key)
				if err = image.MayHave(ctx, n); err != nil {
					release()
				}
			}
			return release, err
		}
		f := c.joinFlight(key, func(ctx context.Context) (func(), error) {
			began = true
			_, release, err := c.take(ctx, r)
			return release, err
		})
		select {
		case <-f.done:
		case <-ctx.Done():
			if c.leaveFlight(key, f) {
				<-f.done // which comes soon, and then nothing appears any more
			}
			return nil, context.Cause(ctx)
		}
		if f.err == nil && ours {
			if held, err := c.hold(ctx, key); held || err != nil {
				release = c.releaseOf(key)
				c.leaveFlight(key, f)
				return release, err
			}
		}
		c.leaveFlight(key, f)
		if f.err != nil && began && !errors.Is(f.err, context.Canceled) {
			return nil, f.err
		}
	}
}

// fetchLayer fills a layer's entry when it is its turn.
func (c *Cache) fetchLayer(ctx context.Context, image *oci.Image, n int, dir string,
	rooms *oci.Rooms, p *pulling) error {
	next, done, err := c.beside(ctx)
	if err != nil {
		return err
	}
	defer done()
	size := image.Layers()[n].Size
	t := &turn{turns: c.pulls.turns, whose: whose(image), pull: p, next: next, size: size,
		memory: min(size, oci.StreamBlocks*oci.BlockSize)}
	defer t.end()
	about, err := image.Unpack(ctx, n, dir, c.inflating(ctx), rooms, t)
	if err != nil {
		return err
	}
	p.fetched(about)
	failpoint.Hit(failpoint.PullLayer)
	b, err := json.Marshal(about)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, layerAbout), b, 0o644); err != nil {
		return err
	}
	blob := sealed{oci.BlobName, about.Size, about.DiffID, about.Bytes}
	if about.Sparse > 0 {
		blob.Digest = ""
	}
	var seals []sealed
	for _, name := range []string{oci.IndexName, layerAbout} {
		s, err := sealOf(dir, name)
		if err != nil {
			return err
		}
		seals = append(seals, s)
	}
	return writeSeal(dir, bootID(), append(seals, blob)...)
}

func aboutLayer(dir string) (l oci.Layer, err error) {
	b, err := os.ReadFile(filepath.Join(dir, layerAbout))
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	return l, err
}

// joinFlight waits in a flight that is under way, or begins one.
func (c *Cache) joinFlight(key string, fetch func(context.Context) (func(), error)) *flight {
	s := &c.pulls.flights
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.under[key]
	if f == nil {
		ctx, cancel := context.WithCancel(context.Background())
		f = &flight{cancel: cancel, done: make(chan struct{})}
		s.under[key] = f
		c.pulls.all.Go(func() {
			release, err := fetch(ctx)
			s.mu.Lock()
			f.err = err
			if f.waiting > 0 {
				f.release, release = release, nil
			}
			if s.under[key] == f {
				delete(s.under, key)
			}
			s.mu.Unlock()
			if release != nil {
				release()
			}
			close(f.done)
		})
	}
	f.waiting++
	return f
}

// leaveFlight takes one out of a flight, and reports whether that was the last, which ends it.
func (c *Cache) leaveFlight(key string, f *flight) (last bool) {
	s := &c.pulls.flights
	s.mu.Lock()
	var release func()
	if f.waiting--; f.waiting == 0 {
		last = true
		f.cancel()
		release, f.release = f.release, nil
		if s.under[key] == f {
			delete(s.under, key)
		}
	}
	s.mu.Unlock()
	if release != nil {
		release()
	}
	return last
}

// drop removes layers that no root needs: those of an image that was refused.
func (c *Cache) drop(keys []string) {
	list := c.entries()
	needed := c.references(list)
	for _, e := range list {
		if needed[e.key] == 0 && slices.Contains(keys, e.key) {
			c.removeEntry(e.key)
		}
	}
}
