package knative

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/fastiov/fastiov/invoker/store"
)

// Deletions are Kubernetes's. A request deletes an object, or marks it as one that is about to go
// where a finalizer holds it. What it owns, and finalizers that say what is to come of that, are
// its collector's, which the reconcilers are.

// deleteOne deletes an object, and answers with what is left of it, or that nothing is.
func (c *call) deleteOne(of ref) error {
	how, err := c.deletion()
	if err != nil {
		return err
	}
	was, left, err := c.delete(of, how)
	if err != nil {
		return err
	}
	//lint:ignore SA1019 older clients say so
	if orphan := how.OrphanDependents; left != nil && orphan != nil && !*orphan {
		return c.answer(http.StatusAccepted, left)
	}
	if left != nil {
		return c.answer(http.StatusOK, left)
	}
	return c.status(metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: of.name.name, Group: of.kind.Group, Kind: of.kind.Names.Plural,
		UID: was.object.GetUID()}})
}

// deletion returns how a request wants objects deleted: what its body says, or else its query.
func (c *call) deletion() (how metav1.DeleteOptions, err error) {
	body, err := c.body()
	if err != nil {
		return how, err
	}
	if len(body) > 0 {
		err = json.Unmarshal(body, &how)
	} else {
		query := c.r.URL.Query()
		err = metav1.Convert_url_Values_To_v1_DeleteOptions(&query, &how, nil)
	}
	if err != nil {
		return how, apierrors.NewBadRequest(err.Error())
	}
	if wrong := metavalidation.ValidateDeleteOptions(&how); len(wrong) > 0 {
		return how, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName,
			Kind: "DeleteOptions"}, "", wrong)
	}
	//lint:ignore SA1019 older clients say so
	if orphan := how.OrphanDependents; orphan != nil {
		how.PropagationPolicy = ptr.To(metav1.DeletePropagationBackground)
		if *orphan {
			how.PropagationPolicy = ptr.To(metav1.DeletePropagationOrphan)
		}
	}
	return how, nil
}

// delete deletes an object, and returns what it was, and what is left of it; nil: nothing.
func (c *call) delete(of ref, how metav1.DeleteOptions) (was, left *entry, err error) {
	w := c.writer()
	w.dry = len(how.DryRun) > 0
	err = untilDone(func() (err error) {
		was = c.world.get(of.kind, of.name.namespace, of.name.name)
		if was == nil {
			return apierrors.NewNotFound(of.kind.resource(), of.name.name)
		}
		if err := was.meets(how.Preconditions); err != nil {
			return err
		}
		left, err = w.delete(c.r.Context(), was, how.PropagationPolicy)
		return err
	})
	return was, left, err
}

// meets returns why an object is not the one that is meant; nil: it is.
func (e *entry) meets(p *metav1.Preconditions) error {
	conflicts := func(format string, told, is any) error {
		return apierrors.NewConflict(schema.GroupResource{Group: e.kind.Group,
			Resource: e.kind.Names.Kind}, e.name.name, fmt.Errorf(format, told, is))
	}
	switch o := e.object; {
	case p == nil:
	case p.UID != nil && *p.UID != o.GetUID():
		return conflicts("the UID in the precondition (%s) does not match the UID in record (%s). "+
			"The object might have been deleted and then recreated", *p.UID, o.GetUID())
	case p.ResourceVersion != nil && *p.ResourceVersion != o.GetResourceVersion():
		return conflicts("the ResourceVersion in the precondition (%s) does not match the "+
			"ResourceVersion in record (%s). The object might have been modified",
			*p.ResourceVersion, o.GetResourceVersion())
	}
	return nil
}

// delete deletes an object, or marks it as one that is about to go while finalizers hold it: those
// that it has, and what a policy adds. It returns what is left of it; nil: nothing.
func (w *writer) delete(
	ctx context.Context, e *entry, policy *metav1.DeletionPropagation,
) (left *entry, err error) {
	o := e.object.DeepCopyObject().(object)
	o.SetFinalizers(heldBy(o.GetFinalizers(), policy))
	switch {
	case len(o.GetFinalizers()) > 0:
		if o.GetDeletionTimestamp() == nil {
			now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
			o.SetDeletionTimestamp(&now)
			o.SetDeletionGracePeriodSeconds(ptr.To[int64](0))
			if o.GetGeneration() > 0 {
				o.SetGeneration(o.GetGeneration() + 1)
			}
		}
		return w.keep(ctx, e.kind, o, e, store.Unbounded)
	case w.dry:
		return nil, nil
	}
	return nil, w.remove(ctx, e)
}

// heldBy returns the finalizers of an object that is deleted by a policy; nil: by what it has.
func heldBy(all []string, policy *metav1.DeletionPropagation) []string {
	if policy == nil {
		return all
	}
	adds := map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationOrphan:     metav1.FinalizerOrphanDependents,
		metav1.DeletePropagationForeground: metav1.FinalizerDeleteDependents}[*policy]
	all = slices.DeleteFunc(slices.Clone(all), func(one string) bool {
		return one != adds && (one == metav1.FinalizerOrphanDependents ||
			one == metav1.FinalizerDeleteDependents)
	})
	if adds != "" && !slices.Contains(all, adds) {
		all = append(all, adds)
	}
	return all
}

// collect deletes an object whose owners are all gone, or wait until it is. Where one stays, the
// object only forgets the others.
func (r *reconciler) collect(ctx context.Context, e *entry) (collected bool, err error) {
	var stay []metav1.OwnerReference
	waited := false
	owners := e.object.GetOwnerReferences()
	for _, owner := range owners {
		k := kindIn(owner)
		if k == nil || r.unusable(ref{k, name{e.name.namespace, owner.Name}}) {
			stay = append(stay, owner) // nobody knows here whether it is there
			continue
		}
		switch of := r.get(k, e.name.namespace, owner.Name); {
		case of == nil || of.object.GetUID() != owner.UID:
		case waitsForOwned(of.object):
			waited = true
		default:
			stay = append(stay, owner)
		}
	}
	if len(stay) == len(owners) {
		return false, nil
	}
	if len(stay) > 0 {
		o := e.object.DeepCopyObject().(object)
		o.SetOwnerReferences(stay)
		return true, r.mark(ctx, e, o)
	}
	var policy *metav1.DeletionPropagation
	if !waited {
		_, err = r.delete(ctx, e, nil)
		return true, ignoreMissing(err)
	}
	if owned := r.owned(e); len(owned) > 0 {
		policy = ptr.To(metav1.DeletePropagationForeground)
		if slices.ContainsFunc(owned, func(o *entry) bool { return waitsForOwned(o.object) }) {
			if e, err = r.unblock(ctx, e); err != nil {
				return true, err
			}
		}
	}
	_, err = r.delete(ctx, e, policy)
	return true, ignoreMissing(err)
}

// waitsForOwned reports whether an object is to go once all that it owns has gone.
func waitsForOwned(o object) bool {
	return o.GetDeletionTimestamp() != nil &&
		slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents)
}

// unblock has nobody wait for an object that may own its owner: they would wait for each other.
func (r *reconciler) unblock(ctx context.Context, e *entry) (*entry, error) {
	o := e.object.DeepCopyObject().(object)
	owners := o.GetOwnerReferences()
	for i := range owners {
		owners[i].BlockOwnerDeletion = ptr.To(false)
	}
	o.SetOwnerReferences(owners)
	return r.keep(ctx, e.kind, o, e, store.Unbounded)
}

// So many objects forget an owner that is orphaning before others have their turn: each waits for
// the store's disk.
const mostReleased = 100

// ending does what an object that is about to go has its collector do, and removes it if nothing
// else holds it.
func (r *reconciler) ending(ctx context.Context, e *entry) error {
	all := e.object.GetFinalizers()
	done := ""
	switch {
	case slices.Contains(all, metav1.FinalizerOrphanDependents):
		done = metav1.FinalizerOrphanDependents
		owned := r.owned(e)
		for _, o := range owned[:min(len(owned), mostReleased)] {
			if err := r.release(ctx, o, e); err != nil {
				return err
			}
		}
		if len(owned) > mostReleased {
			r.queue.Add(ref{e.kind, e.name})
			return nil
		}
	case slices.Contains(all, metav1.FinalizerDeleteDependents):
		done = metav1.FinalizerDeleteDependents
		blocked := false
		for _, o := range r.owned(e) {
			if o.object.GetDeletionTimestamp() == nil {
				r.queue.Add(ref{o.kind, o.name})
			}
			blocked = blocked || o.blocks(e)
		}
		if blocked {
			return nil // the last of them comes by here as it goes
		}
	}
	left := slices.DeleteFunc(slices.Clone(all), func(one string) bool { return one == done })
	if len(left) == len(all) && len(all) > 0 {
		return nil // others hold it
	}
	if len(left) == 0 {
		return ignoreMissing(r.remove(ctx, e))
	}
	o := e.object.DeepCopyObject().(object)
	o.SetFinalizers(left)
	return r.mark(ctx, e, o)
}

// release has an object forget an owner.
func (r *reconciler) release(ctx context.Context, e, owner *entry) error {
	o := e.object.DeepCopyObject().(object)
	o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(),
		func(of metav1.OwnerReference) bool { return names(of, owner) }))
	return r.mark(ctx, e, o)
}

// owned returns what an object owns.
func (r *reconciler) owned(of *entry) (all []*entry) {
	for _, d := range r.naming(ref{of.kind, of.name}) {
		e := r.get(d.kind, d.name.namespace, d.name.name)
		if e != nil && e.reference(of) != nil {
			all = append(all, e)
		}
	}
	return all
}

// naming returns those that name an object as their owner, or a former one of its name.
func (r *reconciler) naming(d ref) []ref {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.owners[d]))
}

// reference returns how an object names one as its owner; nil: it does not.
func (e *entry) reference(to *entry) *metav1.OwnerReference {
	for _, owner := range e.object.GetOwnerReferences() {
		if names(owner, to) {
			return &owner
		}
	}
	return nil
}

func names(owner metav1.OwnerReference, e *entry) bool {
	return owner.UID == e.object.GetUID() && owner.Name == e.name.name && kindIn(owner) == e.kind
}

// ownersOf returns those that an object names as its owners and that may be here.
func ownersOf(e *entry) (all []ref) {
	if e == nil {
		return nil
	}
	for _, owner := range e.object.GetOwnerReferences() {
		if k := kindIn(owner); k != nil {
			all = append(all, ref{k, name{e.name.namespace, owner.Name}})
		}
	}
	return all
}

// blocks reports whether an owner that goes after all that it owns waits for an object: not for one
// that waits for it.
func (e *entry) blocks(owner *entry) bool {
	of := e.reference(owner)
	return of != nil && ptr.Deref(of.BlockOwnerDeletion, false) &&
		!(waitsForOwned(e.object) && owner.reference(e) != nil)
}

// forsaken has those collected that an object owned which was deleted, also where there is a new
// one of its name.
func (r *reconciler) forsaken(d ref) {
	r.mu.Lock()
	was := r.deleted[d]
	delete(r.deleted, d)
	r.mu.Unlock()
	if was {
		for _, of := range r.naming(d) {
			r.queue.Add(of)
		}
	}
}
