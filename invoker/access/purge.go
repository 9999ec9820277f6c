package access

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/fastiov/fastiov/invoker/store"
)

// A Purge reports what one step of a purge has done.
type Purge struct {
	Namespace string `json:"namespace"`
	Entities  int    `json:"entities"` // deleted
	Records   int    `json:"records"`  // deleted, with promises
	UnderWay  int    `json:"underWay"` // calls and changes that may still add something
	Done      bool   `json:"done"`     // nothing of the subject is left
}

// Purge deletes some of what a deleted subject left: entities with their code, records and
// promises. The caller repeats it until it is Done. A namespace is marked as being purged before
// anything in it is deleted. Once it is empty and this process has no call of it under way, it is
// free. Each step changes the mark, so a purge stops once somebody else has the namespace. A call
// that another invoker still runs may add a record later; then the namespace is not free, and is
// purged again.
func (r *Register) Purge(ctx context.Context, subject string) (p Purge, err error) {
	namespace, c, err := r.leftBy(ctx, subject)
	if err != nil {
		return p, err
	}
	p.Namespace = namespace
	c.Purging = true
	if c, err = r.putClaim(ctx, namespace, c); err == nil {
		err = r.purge(ctx, &p)
	}
	if err == nil && p.Entities+p.Records+p.UnderWay == 0 {
		err = r.Store.Delete(ctx, claimKey(namespace), c.revision)
		_, _, more := r.Directory.left(subject)
		p.Done = !more
	}
	if errors.Is(err, store.ErrConflict) {
		err = errors.New("another command is purging it, too")
	}
	if err != nil {
		err = fmt.Errorf("namespace %q: %w; run it again", namespace, err)
	}
	return p, err
}

// leftBy returns a namespace that a subject left. A former version made no claims; its namespaces
// have the subject's name.
func (r *Register) leftBy(ctx context.Context, subject string) (string, claim, error) {
	if namespace, c, found := r.Directory.left(subject); found {
		return namespace, c, nil
	}
	if subject == Guest {
		return "", claim{}, fmt.Errorf("%q: %w", Guest, ErrFixed)
	}
	if _, found := r.Directory.subject(subject); found {
		return "", claim{}, fmt.Errorf("subject %q: %w; delete it first", subject, ErrExists)
	}
	_, claimed := r.Directory.claim(subject)
	_, owned := r.Directory.byName.Load(subject)
	holds := false
	if !claimed && !owned && subjectName.MatchString(subject) && subject != "_" {
		var err error
		if holds, err = r.holds(ctx, subject); err != nil {
			return "", claim{}, err
		}
	}
	if !holds {
		return "", claim{}, fmt.Errorf("subject %q: %w, and nothing of it is left",
			subject, ErrNobody)
	}
	return subject, claim{Subject: subject}, nil
}

// holds reports whether there is anything in a namespace.
func (r *Register) holds(ctx context.Context, namespace string) (bool, error) {
	used, err := r.Store.Used(ctx, namespace)
	if err != nil || used.Entities > 0 {
		return true, err
	}
	records, err := r.Store.Count(ctx, store.Filter{Namespace: namespace})
	return records > 0, err
}

func (r *Register) purge(ctx context.Context, p *Purge) (err error) {
	// counted before the deletion, so that the records of calls that end now are found
	p.UnderWay = r.Directory.underWay(p.Namespace)
	if p.Entities, err = r.purgeEntities(ctx, p.Namespace); err != nil || p.Entities > 0 {
		return err
	}
	p.Records, err = r.Store.Forget(ctx, p.Namespace)
	return err
}

// purgeEntities deletes some of a namespace's documents, many at once, so that they share an fsync.
func (r *Register) purgeEntities(ctx context.Context, namespace string) (int, error) {
	const most, atOnce = 1000, 64
	watch, end := context.WithCancel(ctx)
	var mu sync.Mutex // changes that come after the list come from another goroutine
	var seen []store.Doc
	err := r.Store.Watch(watch, func(doc store.Doc) {
		mu.Lock()
		defer mu.Unlock()
		if doc.Namespace == namespace && doc.Body != nil && len(seen) < most {
			seen = append(seen, doc)
		}
	})
	end()
	if err != nil {
		return 0, err
	}
	mu.Lock()
	docs := seen[:len(seen):len(seen)]
	mu.Unlock()
	var all sync.WaitGroup
	errs, places := make([]error, len(docs)), make(chan struct{}, atOnce)
	for i, doc := range docs {
		places <- struct{}{}
		all.Go(func() {
			err := r.Store.Delete(ctx, doc.Key, doc.Revision)
			if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
				errs[i] = err // otherwise the next step finds it again, or it is gone
			}
			<-places
		})
	}
	all.Wait()
	return len(docs), errors.Join(errs...)
}
