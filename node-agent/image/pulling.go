package image

import (
	"fmt"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// A pull says this often how far it is.
const tellEvery = 2 * time.Second

// A Report holds what a pull did. Its stages are times of their own, which overlap: their sum
// is more than the whole.
type Report struct {
	Err      error
	Took     time.Duration
	Received int64 // bytes from the registry
	Archives int64 // bytes of the layers that were unpacked
	Layers   int
	Names    int // files and the like in them
	Stages   map[string]time.Duration
}

// Stages of a pull, in their order. Most are the Poby paper's names.
var Stages = []string{"find", "download", "decompress", "digest", "transmit", "unpack", "merge"}

// A pulling holds how far a pull is, and how long its stages took.
type pulling struct {
	mu            sync.Mutex
	image         *oci.Image
	layers, ready int
	fetchedLayers int
	queued        time.Duration // for others' pulls
	turned        bool          // a layer has had its turn
	stages        oci.Stages
	find, merge   time.Duration
	archives      int64
	names         int
}

func (p *pulling) begin(image *oci.Image, found time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.image, p.find, p.layers = image, found, len(image.Layers())
}

// fetched notes a layer that came from the registry.
func (p *pulling) fetched(l oci.Layer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stages.Add(l.Stages)
	p.fetchedLayers++
	p.archives += l.Size
	p.names += l.Names
}

// layerDone notes a layer that is here.
func (p *pulling) layerDone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready++
}

// waitedFor notes a wait for the turn of others, before this pull had any.
func (p *pulling) waitedFor(others time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.turned {
		p.queued += others
	}
}

// hasTurn notes that a layer has its turn, for which it waited.
func (p *pulling) hasTurn(after time.Duration) {
	p.waitedFor(after)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turned = true
}

// did returns what the pull did, for the record of a start.
func (p *pulling) did() *timeline.Pull {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.image == nil {
		return nil
	}
	return &timeline.Pull{Received: p.image.Received(), Layers: p.layers,
		Fetched: p.fetchedLayers, Waited: p.queued}
}

func (p *pulling) merged(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.merge = took
}

// report returns what the pull did, which has ended with err.
func (p *pulling) report(err error, took time.Duration) Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := Report{Err: err, Took: took, Archives: p.archives, Layers: p.layers, Names: p.names}
	if p.image != nil {
		r.Received = p.image.Received()
	}
	s := p.stages
	r.Stages = map[string]time.Duration{
		"find": p.find, "download": s.Download, "decompress": s.Decompress, "digest": s.Digest,
		"transmit": s.Transmit, "unpack": s.Unpack, "merge": p.merge,
	}
	return r
}

// String says how far the pull is; it is empty before the image is found.
func (p *pulling) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.image == nil {
		return ""
	}
	if p.ready < p.layers && !p.turned {
		return "waiting for other pulls"
	}
	if p.ready < p.layers {
		return fmt.Sprintf("pulling, %d of %s, %d of %d layers", p.image.Received()>>20,
			megabytes(p.image.Bytes), p.ready, p.layers)
	}
	return "writing the root image"
}

// tell says how far the pull is, again and again until stopped.
func (p *pulling) tell(say func(string, ...any)) (stop func()) {
	say("%s", p)
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(tellEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				say("%s", p)
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		all.Wait()
	}
}

// doing says how far the pull of an image is, as it was first asked for; it is empty where there is
// none.
func (s *pulls) doing(ref string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, p := range s.under {
		if key.ref == oci.InFull(ref) {
			return p.String()
		}
	}
	return ""
}
