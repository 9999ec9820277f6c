package image

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// How much is pulled at a time, and how long it is known what came of it.
const (
	nodePulls      = 16
	namespacePulls = 2               // of them
	pullDeadline   = 4 * time.Minute // and a second for each slowestLine bytes of the image
	slowestLine    = 1 << 20
	tagAge         = 5 * time.Minute  // then a tag is looked up again; a digest never is
	refusedAge     = 30 * time.Second // then a refused image is tried again
	passingAge     = 5 * time.Second  // where the next attempt may well succeed
	maxOutcomes    = 4096
)

// asked is whose image is wanted, by its reference in full: it may be written in many ways.
// Namespaces share entries of the cache, but each asks the registry with its own credentials and
// waits in its own line.
type asked struct{ namespace, ref string }

// pulls are the images on their way here, each once however many wait for it, and what became of
// those before. A pull goes on while anybody waits for it.
type pulls struct {
	mu       sync.Mutex
	now      func() time.Time
	under    map[asked]*pull
	outcomes map[asked]outcome
	node     *semaphore.Weighted
	lines    map[string]*line // by namespace
	flights  flights
	turns    *turns
	all      sync.WaitGroup

	names []Name    // that the cache had
	named time.Time // when they were last changed
}

// A pull is one that is under way or has just ended. Its waiters take their own hold of what it
// made before the last of them lets go of the pull's.
type pull struct {
	pulling
	waiting int
	cancel  context.CancelFunc
	done    chan struct{}
	outcome outcome
	release func()
}

// An outcome is the end of a pull.
type outcome struct {
	Runtime
	ref   string // as whoever asked first wrote it
	err   error
	at    time.Time
	until time.Time // then it counts no more
}

type line struct {
	*semaphore.Weighted
	waiting int
}

func newPulls() *pulls {
	return &pulls{
		now: time.Now, under: map[asked]*pull{}, outcomes: map[asked]outcome{},
		node: semaphore.NewWeighted(nodePulls), lines: map[string]*line{},
		flights: flights{under: map[string]*flight{}}, turns: newTurns(),
	}
}

// Pull returns the runtime of the OCI image ref for the namespace. It is in use until released.
func (c *Cache) Pull(ctx context.Context, ref, namespace string) (Runtime, func(), error) {
	key := asked{namespace, oci.InFull(ref)}
	for {
		if o, known := c.known(key); known {
			if o.err != nil {
				return Runtime{}, nil, oci.InWordsOf(ref, o.err)
			}
			release, err := c.Hold(ctx, o.Root)
			if release != nil || err != nil {
				return o.Runtime, release, err
			}
			c.pulls.forget(key) // it has been evicted
		}
		p := c.join(key, ref)
		select {
		case <-p.done:
		case <-ctx.Done():
			c.pulls.leave(key, p)
			return Runtime{}, nil, context.Cause(ctx)
		}
		o := p.outcome
		release, err := c.Hold(ctx, o.Root)
		c.pulls.leave(key, p)
		if o.err != nil {
			return Runtime{}, nil, oci.InWordsOf(ref, o.err)
		}
		if release != nil || err != nil {
			o.Runtime.Pull = p.did()
			return o.Runtime, release, err
		}
	}
}

// known returns the outcome of a former pull, as long as it counts. What is remembered of one that
// went well counts for tagAge, or until another process gives the name to an image; then the name
// in the cache is read again.
func (c *Cache) known(key asked) (outcome, bool) {
	if o, known := c.pulls.known(key); known && !c.namedSince(key, o.at) {
		return o, true
	}
	o, found := c.recall(key)
	now := c.pulls.now()
	if !found || !o.until.IsZero() && !now.Before(o.until) {
		return outcome{}, false
	}
	if next := now.Add(tagAge); o.until.IsZero() || next.Before(o.until) {
		o.until = next
	}
	c.pulls.mu.Lock()
	defer c.pulls.mu.Unlock()
	c.pulls.remember(key, o)
	return o, true
}

func (s *pulls) known(key asked) (outcome, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, found := s.outcomes[key]
	return o, found && s.now().Before(o.until)
}

func (s *pulls) forget(key asked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.outcomes, key)
}

// join waits in the pull that is under way, or begins one.
func (c *Cache) join(key asked, ref string) *pull {
	s := c.pulls
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.under[key]
	if p == nil {
		ctx, cancel := context.WithCancel(context.Background())
		p = &pull{cancel: cancel, done: make(chan struct{})}
		s.under[key] = p
		s.all.Go(func() {
			defer cancel()
			o, release := c.bring(ctx, key, &p.pulling)
			o.ref = ref
			s.end(key, p, o, release)
		})
	}
	p.waiting++
	return p
}

// leave takes one out of a pull; the last one ends it.
func (s *pulls) leave(key asked, p *pull) {
	s.mu.Lock()
	p.waiting--
	release := p.release
	if p.waiting > 0 {
		release = nil
	} else {
		p.cancel()
		p.release = nil
		if s.under[key] == p {
			delete(s.under, key)
		}
	}
	s.mu.Unlock()
	if release != nil {
		release()
	}
}

// end publishes what came of a pull, unless everybody has left it.
func (s *pulls) end(key asked, p *pull, o outcome, release func()) {
	s.mu.Lock()
	left := p.waiting == 0
	if !left {
		p.outcome, p.release = o, release
		s.remember(key, o)
		delete(s.under, key)
	}
	s.mu.Unlock()
	if left && release != nil {
		release()
	}
	close(p.done)
}

// remember makes room for one more outcome where need be: the oldest goes.
func (s *pulls) remember(key asked, o outcome) {
	o.at = s.now()
	if _, known := s.outcomes[key]; !known && len(s.outcomes) >= maxOutcomes {
		var oldest asked
		var at time.Time
		for key, o := range s.outcomes {
			if at.IsZero() || o.at.Before(at) {
				oldest, at = key, o.at
			}
		}
		delete(s.outcomes, oldest)
	}
	s.outcomes[key] = o
}

// bring pulls an image when it is its turn.
func (c *Cache) bring(ctx context.Context, key asked, p *pulling) (outcome, func()) {
	asked := time.Now()
	done, err := c.pulls.queue(ctx, key.namespace)
	if err != nil {
		return outcome{err: err}, nil
	}
	defer done()
	p.waitedFor(time.Since(asked))
	begin := time.Now()
	r, release, err := c.pull(ctx, key, p)
	if !errors.Is(err, context.Canceled) && c.Pulled != nil {
		c.Pulled(p.report(err, time.Since(begin)))
	}
	o := outcome{Runtime: r, err: err}
	var refused *oci.Refusal
	now := c.pulls.now()
	switch {
	case errors.As(err, &refused) && refused.Passing():
		if old, had := c.former(key); had { // better an old image than none
			if release, _ := c.Hold(ctx, old.Root); release != nil {
				old.until = now.Add(refusedAge)
				return old, release
			}
		}
		o.until = now.Add(passingAge)
	case refused != nil && !c.Policy.never: // else it is loaded any moment
		o.until = now.Add(refusedAge)
	case err != nil:
		o.until = now
	default:
		o.until = now.Add(min(c.Policy.age(), tagAge))
	}
	return o, release
}

// former returns the last image that the reference stood for.
func (c *Cache) former(key asked) (outcome, bool) {
	c.pulls.mu.Lock()
	o, found := c.pulls.outcomes[key]
	c.pulls.mu.Unlock()
	if found && o.err == nil {
		return o, true
	}
	return c.recall(key)
}

// queue waits for a turn: in the namespace's line, then in the node's.
func (s *pulls) queue(ctx context.Context, namespace string) (done func(), err error) {
	s.mu.Lock()
	l := s.lines[namespace]
	if l == nil {
		l = &line{Weighted: semaphore.NewWeighted(namespacePulls)}
		s.lines[namespace] = l
	}
	l.waiting++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.waiting--; l.waiting == 0 {
			delete(s.lines, namespace)
		}
	}
	if err := l.Acquire(ctx, 1); err != nil {
		leave()
		return nil, err
	}
	if err := s.node.Acquire(ctx, 1); err != nil {
		l.Release(1)
		leave()
		return nil, err
	}
	return func() { s.node.Release(1); l.Release(1); leave() }, nil
}

// close ends what is under way.
func (s *pulls) close() {
	s.mu.Lock()
	for _, p := range s.under {
		p.cancel()
	}
	clear(s.outcomes)
	s.mu.Unlock()
	s.all.Wait()
}

// pulled returns the references of the images that this node has.
func (s *pulls) pulled() (refs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.outcomes {
		if o.err == nil {
			refs = append(refs, o.ref)
		}
	}
	return refs
}

// Hold takes the entry of a root image into use, if it is in the cache: until released it stays.
// Without such an entry there is no release.
func (c *Cache) Hold(ctx context.Context, root string) (release func(), err error) {
	entry := filepath.Dir(root)
	if filepath.Dir(entry) != filepath.Join(c.dir, "entries") {
		return nil, nil
	}
	found, err := c.hold(ctx, filepath.Base(entry))
	if err != nil || !found {
		return nil, err
	}
	return c.releaseOf(filepath.Base(entry)), nil
}
