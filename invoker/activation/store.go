package activation

import "sync"

// A Store remembers the most recent activations of one node in memory, as many as fit its bound. The zero value is not ready; use
// NewStore.
type Store struct {
	mu      sync.Mutex
	limit   int
	size    int
	byID    map[string]*Record
	records []*Record // oldest first, by when they were added
}

// NewStore returns a store that forgets its oldest records when they take more than limit bytes together.
func NewStore(limit int) *Store {
	return &Store{limit: limit, byID: map[string]*Record{}}
}

// Add keeps a record, which must not change any more.
func (s *Store) Add(r *Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[r.ID] = r
	s.records = append(s.records, r)
	s.size += r.Size()
	for s.size > s.limit && len(s.records) > 1 {
		oldest := s.records[0]
		s.records[0] = nil
		s.records = s.records[1:]
		s.size -= oldest.Size()
		delete(s.byID, oldest.ID)
	}
}

// Get returns the record of that id in the namespace, or nil.
func (s *Store) Get(namespace, id string) *Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.byID[id]; r != nil && r.Namespace == namespace {
		return r
	}
	return nil
}

// List returns the records that the filter takes, newest first.
func (s *Store) List(f Filter) []*Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*Record
	for i := len(s.records) - 1; i >= 0; i-- {
		if f.Takes(s.records[i]) {
			list = append(list, s.records[i])
		}
	}
	return list
}
