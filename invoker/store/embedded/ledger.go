package embedded

// A ledger holds a value for each namespace, beside the file. It changes within transactions, and
// undoes the changes of a failed one.
type ledger[V comparable] struct {
	now    map[string]V
	before map[string]V // the values before the current transaction
}

func newLedger[V comparable]() ledger[V] {
	return ledger[V]{map[string]V{}, map[string]V{}}
}

func (l *ledger[V]) set(namespace string, v V) {
	if _, saved := l.before[namespace]; !saved {
		l.before[namespace] = l.now[namespace]
	}
	l.put(namespace, v)
}

func (l *ledger[V]) put(namespace string, v V) {
	var none V
	if v == none {
		delete(l.now, namespace)
	} else {
		l.now[namespace] = v
	}
}

// end ends a transaction.
func (l *ledger[V]) end(kept bool) {
	if !kept {
		for namespace, v := range l.before {
			l.put(namespace, v)
		}
	}
	clear(l.before)
}
