package knative

import (
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Readers are the requests that stay to be told more. Each namespace may have so many.
type readers struct {
	what string // they are
	most int

	mu sync.Mutex
	of map[string]int // by namespace
}

func newReaders(what string, most int) *readers {
	return &readers{what: what, most: most, of: map[string]int{}}
}

// enter counts one more, or says that there are enough.
func (r *readers) enter(namespace string) (leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of[namespace] == r.most {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf(
			"the namespace has %d %s already, which is the most; end some", r.most, r.what), 10)
	}
	r.of[namespace]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.of[namespace]--; r.of[namespace] == 0 {
			delete(r.of, namespace)
		}
	}, nil
}
