package knative

import (
	"cmp"
	"container/list"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
)

// A said holds what an Event says, however often.
type said struct {
	fold
	about         types.UID
	reason, words string
}

// A fold has the Events of a namespace that are of one type: what is routine pushes out no warning.
type fold struct{ namespace, sort string }

// A telling is an Event that is shown.
type telling struct {
	said
	entry *entry
}

// Events are kept for as long, as in Kubernetes, and so many of a fold.
const (
	eventsFor  = time.Hour
	mostEvents = 256
)

// tell says what has happened to an object, as Knative's controllers do.
func (m *mirror) tell(e *event) {
	if owner, of := ownerOf(e.entry.object); e.what == "ADDED" && owner != nil {
		if by := m.world.get(of, e.entry.name.namespace, owner.Name); by != nil {
			m.say(by, corev1.EventTypeNormal, "Created",
				fmt.Sprintf("Created %s %q", e.entry.kind.Names.Kind, e.entry.name.name))
		}
	}
	if e.what != "MODIFIED" {
		return
	}
	was, is := readiness(e.before.object), readiness(e.entry.object)
	kind := e.entry.kind.Names.Kind
	switch {
	case is == nil:
	case is.IsTrue() && !was.IsTrue():
		m.say(e.entry, corev1.EventTypeNormal, kind+"Ready", kind+" becomes ready")
	case is.IsFalse() && (!was.IsFalse() || was.Message != is.Message):
		m.say(e.entry, corev1.EventTypeWarning, cmp.Or(is.Reason, "NotReady"), is.Message)
	}
	if c, is := e.entry.object.(*v1.Configuration); is {
		before := e.before.object.(*v1.Configuration).Status.LatestReadyRevisionName
		if latest := c.Status.LatestReadyRevisionName; latest != before && latest != "" {
			m.say(e.entry, corev1.EventTypeNormal, "LatestReadyUpdate",
				fmt.Sprintf("LatestReadyRevisionName updated to %q", latest))
		}
	}
}

// readiness returns the condition Ready of an object that has conditions, or nil.
func readiness(o object) *apis.Condition {
	if with, is := o.(interface{ GetStatus() *duckv1.Status }); is {
		return with.GetStatus().GetCondition(apis.ConditionReady)
	}
	return nil
}

// cut returns the beginning of words that are too long.
func cut(words string) string {
	if len(words) > mostWords {
		words = strings.ToValidUTF8(words[:mostWords], "") + "…"
	}
	return words
}

// say shows an Event about an object, or that one happens again.
func (m *mirror) say(about *entry, sort, reason, words string) {
	if _, err := m.directory.Owner(about.name.namespace); err != nil {
		return // the namespace is being purged: its next owner is not told
	}
	words = cut(words)
	this := said{fold{about.name.namespace, sort}, about.object.GetUID(), reason, words}
	if at := m.said[this]; at != nil {
		old := at.Value.(*telling)
		o := old.entry.object.DeepCopyObject().(*corev1.Event)
		o.Count, o.LastTimestamp = o.Count+1, now()
		old.entry = m.show(o, old.entry)
		m.told[this.fold].MoveToBack(at)
		return
	}
	gvk := about.kind.gvk()
	o := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: about.name.namespace,
			Name: fmt.Sprintf("%s.%x", about.name.name, time.Now().UnixNano())},
		InvolvedObject: corev1.ObjectReference{Kind: gvk.Kind, APIVersion: about.kind.gv().String(),
			Namespace: about.name.namespace, Name: about.name.name, UID: about.object.GetUID(),
			ResourceVersion: about.object.GetResourceVersion()},
		Type: sort, Reason: reason, Message: words, Count: 1,
		FirstTimestamp: now(), LastTimestamp: now(),
		Source: corev1.EventSource{Component: "fastiov"},
	}
	all := m.told[this.fold]
	if all == nil {
		all = list.New()
		m.told[this.fold] = all
	}
	m.said[this] = all.PushBack(&telling{this, m.show(o, nil)})
	if all.Len() > mostEvents {
		m.forget(all.Front())
	}
}

// mostWords bounds what an Event or a Pod says, as Kubernetes does.
const mostWords = 1024

// forgetOld forgets the Events of long ago.
func (m *mirror) forgetOld(now time.Time) {
	for _, all := range m.told {
		for at := all.Front(); at != nil; at = all.Front() {
			o := at.Value.(*telling).entry.object.(*corev1.Event)
			if now.Sub(o.LastTimestamp.Time) <= eventsFor {
				break
			}
			m.forget(at)
		}
	}
}

func (m *mirror) forget(at *list.Element) {
	t := at.Value.(*telling)
	delete(m.said, t.said)
	if m.told[t.fold].Remove(at); m.told[t.fold].Len() == 0 {
		delete(m.told, t.fold)
	}
	m.world.hide(t.entry)
}

// warn says what is wrong with a revision.
func (m *mirror) warn(v *v1.Revision, reason, words string) {
	m.later(func() {
		e := m.world.get(revisions, v.Namespace, v.Name)
		if e != nil && e.object.GetUID() == v.UID {
			m.say(e, corev1.EventTypeWarning, reason, words)
		}
	})
}
