package knative

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/kmeta"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	"knative.dev/serving/pkg/apis/serving/v1beta1"
	"knative.dev/serving/pkg/reconciler/configuration/resources"

	"github.com/fastiov/fastiov/invoker/pool"
)

// So many objects are reconciled at once: each waits for the store's disk.
const workers = 16

// What failed is tried again, later each time.
const soonest, latest = 5 * time.Millisecond, 30 * time.Second

// What waits for others to make room, or to give up a host, is looked at so often.
const betweenLooks = time.Second

// A service sums up what its configuration and route have said within this time.
const aMoment = time.Millisecond

// The first start of a revision waits so long for room before the revision says so. Then it waits
// again.
const roomWithin = 10 * time.Second

// A revision whose first start has not gone well after this time has failed, as in Knative. An
// annotation may say another.
const progressWithin = 10 * time.Minute

// Kubernetes's reasons for what finds no room, and for what a Secret or a ConfigMap is lacking for.
const (
	unschedulable = "Unschedulable"
	unconfigured  = "CreateContainerConfigError"
)

// A reconciler brings about what objects say. It begins with all there are, and goes on with what
// events name; so it needs no memory of its own.
type reconciler struct {
	*writer
	queue workqueue.TypedRateLimitingInterface[ref]
	road  *road
	done  sync.WaitGroup

	mu      sync.Mutex
	of      map[ref]map[name]bool   // the routes to a configuration or a revision
	owners  map[ref]map[ref]bool    // what names an object as its owner
	deleted map[ref]bool            // owners of which the owned have not been told
	proved  map[types.UID]bool      // revisions whose first sandbox is being started
	lacked  map[types.UID]time.Time // when a revision was last without a Secret or ConfigMap
}

func newReconciler(r *road) *reconciler {
	return &reconciler{
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[ref](soonest, latest)),
		road: r, of: map[ref]map[name]bool{}, owners: map[ref]map[ref]bool{},
		deleted: map[ref]bool{}, proved: map[types.UID]bool{}, lacked: map[types.UID]time.Time{},
	}
}

// follow puts into the queue what an event concerns: the object, its owners, the routes to it, and
// the mappings that need it. What it owned comes after it. A status that follows from others alone
// does not concern its own object.
func (r *reconciler) follow(e *event) {
	if e.entry.kind.Derived {
		return
	}
	n := e.entry.name
	me := ref{e.entry.kind, n}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own(e, me)
	if k := me.kind; !e.noted || k != services && k != configurations && k != routes {
		r.queue.Add(me)
	}
	for _, of := range r.road.domains.names(me) {
		r.queue.Add(ref{domainMappings, name{n.namespace, of}})
	}
	if e.what == "DELETED" {
		delete(r.lacked, e.entry.object.GetUID())
	}
	if me.kind == routes {
		for _, to := range targets(e.before) {
			delete(r.of[to], n)
			if len(r.of[to]) == 0 {
				delete(r.of, to)
			}
			r.routed(to)
		}
		if e.what == "DELETED" {
			return
		}
		for _, to := range targets(e.entry) {
			if r.of[to] == nil {
				r.of[to] = map[name]bool{}
			}
			r.of[to][n] = true
			r.routed(to)
		}
	}
	for route := range r.of[me] {
		r.queue.Add(ref{routes, route})
	}
}

// own takes in whom an event's object names as its owners, and puts them into the queue, as well as
// those that it does not name any more: they may have waited for it. The caller holds the lock.
func (r *reconciler) own(e *event, me ref) {
	gone := e.what == "DELETED"
	for _, of := range ownersOf(e.before) {
		delete(r.owners[of], me)
		if len(r.owners[of]) == 0 {
			delete(r.owners, of)
		}
		r.tellOwner(of, gone)
	}
	if gone {
		if r.owners[me] != nil {
			r.deleted[me] = true
		}
		return
	}
	for _, of := range ownersOf(e.entry) {
		if r.owners[of] == nil {
			r.owners[of] = map[ref]bool{}
		}
		r.owners[of][me] = true
		r.tellOwner(of, gone)
	}
}

// tellOwner puts an owner into the queue: a service in a moment, as its configuration and its route
// change close together.
func (r *reconciler) tellOwner(of ref, gone bool) {
	if of.kind == services && !gone {
		r.queue.AddAfter(of, aMoment)
		return
	}
	r.queue.Add(of)
}

// routed puts a revision into the queue to which a route leads, or has led: it keeps sandboxes, or
// keeps none any more.
func (r *reconciler) routed(to ref) {
	if to.kind == revisions {
		r.queue.Add(to)
	}
}

// targets returns what a route leads to, and what it should lead to.
func targets(e *entry) (all []ref) {
	if e == nil {
		return nil
	}
	to := e.object.(*v1.Route)
	for _, t := range slices.Concat(to.Spec.Traffic, to.Status.Traffic) {
		if t.ConfigurationName != "" {
			all = append(all, ref{configurations, name{to.Namespace, t.ConfigurationName}})
		}
		if t.RevisionName != "" {
			all = append(all, ref{revisions, name{to.Namespace, t.RevisionName}})
		}
	}
	return all
}

// run reconciles until the queue is shut down.
func (r *reconciler) run(ctx context.Context, w *writer) {
	r.writer = w
	for range workers {
		r.done.Go(func() {
			for {
				d, over := r.queue.Get()
				if over {
					return
				}
				err := r.reconcile(ctx, d)
				switch {
				case err == nil:
					r.queue.Forget(d)
				case ctx.Err() != nil:
				case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
					r.queue.AddRateLimited(d)
				default:
					r.log.Warn("a service is not as it should be, and is tried again",
						"kind", d.kind.Names.Kind, "name", d.name.name, "err", err)
					r.queue.AddRateLimited(d)
				}
				r.queue.Done(d)
			}
		})
	}
}

func (r *reconciler) reconcile(ctx context.Context, d ref) error {
	r.forsaken(d)
	e := r.get(d.kind, d.name.namespace, d.name.name)
	if e == nil {
		return nil
	}
	if e.object.GetDeletionTimestamp() != nil {
		return r.ending(ctx, e)
	}
	if collected, err := r.collect(ctx, e); collected {
		return err
	}
	ctx = r.context(ctx)
	switch o := e.object.DeepCopyObject().(type) {
	case *v1.Service:
		return r.service(ctx, e, o)
	case *v1.Configuration:
		return r.configuration(ctx, e, o)
	case *v1.Revision:
		return r.revision(ctx, e, o)
	case *v1.Route:
		return r.route(ctx, e, o)
	case *v1beta1.DomainMapping:
		return r.mapping(e, o)
	}
	return nil
}

func (r *reconciler) service(ctx context.Context, e *entry, s *v1.Service) error {
	st := &s.Status
	st.InitializeConditions()
	st.ObservedGeneration = s.Generation
	var route *entry
	var unrouted error
	var made sync.WaitGroup // both share the disk's flush
	made.Go(func() { route, unrouted = r.follower(ctx, routes, routeOf(s)) })
	config, err := r.follower(ctx, configurations, configurationOf(s))
	made.Wait()
	err = errors.Join(err, unrouted)
	if apierrors.IsForbidden(err) {
		c := v1.ConfigurationStatus{ConfigurationStatusFields: st.ConfigurationStatusFields}
		c.MarkRevisionCreationFailed(err.Error())
		st.PropagateConfigurationStatus(&c)
		r.queue.AddAfter(ref{e.kind, e.name}, latest)
		return r.report(e, s)
	} else if err != nil {
		return err
	}
	c, is := config.object.(*v1.Configuration)
	switch {
	case !is || !metav1.IsControlledBy(c, s):
		st.MarkConfigurationNotOwned(s.Name)
	case c.Generation != c.Status.ObservedGeneration:
		st.MarkConfigurationNotReconciled()
	default:
		st.PropagateConfigurationStatus(&c.Status)
	}
	to := route.object.(*v1.Route)
	switch {
	case !metav1.IsControlledBy(to, s):
		st.MarkRouteNotOwned(s.Name)
	case to.Generation != to.Status.ObservedGeneration:
		st.MarkRouteNotReconciled()
	default:
		st.PropagateRouteStatus(&to.Status)
		if rc := st.GetCondition(v1.ServiceConditionRoutesReady); rc.IsTrue() && !arrived(c, to) {
			st.MarkRouteNotYetReady()
		}
	}
	return r.report(e, s)
}

// arrived reports whether a route sends its traffic where it should by now.
func arrived(c *v1.Configuration, to *v1.Route) bool {
	same := func(want, got v1.TrafficTarget) bool {
		if want.ConfigurationName == c.Name {
			want.RevisionName = c.Status.LatestReadyRevisionName
		}
		return want.RevisionName == got.RevisionName && want.Tag == got.Tag &&
			ptr.Deref(want.Percent, 0) == ptr.Deref(got.Percent, 0)
	}
	return slices.EqualFunc(to.Spec.Traffic, to.Status.Traffic, same)
}

// follower makes what a service owns, or brings it to what the service says.
func (r *reconciler) follower(ctx context.Context, k *kind, want object) (*entry, error) {
	old := r.get(k, want.GetNamespace(), want.GetName())
	if old == nil {
		return r.create(ctx, k, want)
	}
	owner := metav1.GetControllerOf(want)
	if is := metav1.GetControllerOf(old.object); is == nil || is.UID != owner.UID {
		return old, nil // the service's condition says so
	}
	if sameLabels(old.object, want) && sameSpec(old.object, want) {
		return old, nil
	}
	now := old.object.DeepCopyObject().(object)
	now.SetLabels(want.GetLabels())
	now.SetAnnotations(want.GetAnnotations())
	part(now, "Spec").Set(part(want, "Spec"))
	return r.update(ctx, old, now)
}

func configurationOf(s *v1.Service) *v1.Configuration {
	notes := maps.Clone(s.Annotations)
	maps.DeleteFunc(notes, func(key, _ string) bool {
		return key == corev1.LastAppliedConfigAnnotation ||
			slices.Contains(serving.RolloutDurationAnnotation, key)
	})
	if notes == nil {
		notes = map[string]string{}
	}
	notes[serving.RoutesAnnotationKey] = s.Name
	return &v1.Configuration{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name, Namespace: s.Namespace, Annotations: notes,
			OwnerReferences: []metav1.OwnerReference{*kmeta.NewControllerRef(s)},
			Labels: kmeta.UnionMaps(s.Labels, map[string]string{
				serving.ServiceLabelKey: s.Name, serving.ServiceUIDLabelKey: string(s.UID)}),
		},
		Spec: *s.Spec.ConfigurationSpec.DeepCopy(),
	}
}

func routeOf(s *v1.Service) *v1.Route {
	to := &v1.Route{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name, Namespace: s.Namespace,
			OwnerReferences: []metav1.OwnerReference{*kmeta.NewControllerRef(s)},
			Annotations: kmeta.FilterMap(s.Annotations,
				func(key string) bool { return key == corev1.LastAppliedConfigAnnotation }),
			Labels: kmeta.UnionMaps(s.Labels, map[string]string{serving.ServiceLabelKey: s.Name}),
		},
		Spec: *s.Spec.RouteSpec.DeepCopy(),
	}
	for i := range to.Spec.Traffic {
		if to.Spec.Traffic[i].RevisionName == "" {
			to.Spec.Traffic[i].ConfigurationName = s.Name
		}
	}
	return to
}

func (r *reconciler) configuration(ctx context.Context, e *entry, c *v1.Configuration) error {
	st := &c.Status
	st.InitializeConditions()
	st.ObservedGeneration = c.Generation
	want := resources.MakeRevision(ctx, c, time.Now())
	newest := r.get(revisions, c.Namespace, want.Name)
	var err error
	if newest == nil {
		if newest, err = r.create(ctx, revisions, want); apierrors.IsForbidden(err) {
			st.MarkRevisionCreationFailed(err.Error())
			r.queue.AddAfter(ref{e.kind, e.name}, latest)
			return r.report(e, c)
		} else if err != nil {
			return err
		}
	}
	made := newest.object.(*v1.Revision)
	generation := serving.ConfigurationGenerationLabelKey
	if !metav1.IsControlledBy(made, c) || made.Labels[generation] != want.Labels[generation] &&
		!equality.Semantic.DeepEqual(made.Spec, want.Spec) {
		st.MarkRevisionCreationFailed(apierrors.NewAlreadyExists(
			revisions.resource(), made.Name).Error())
		return r.report(e, c)
	}
	st.SetLatestCreatedRevisionName(made.Name)
	switch ready := made.Status.GetCondition(v1.RevisionConditionReady); {
	case ready.IsTrue():
		st.SetLatestReadyRevisionName(made.Name)
	case ready.IsFalse():
		st.MarkLatestCreatedFailed(made.Name, ready.GetMessage())
	}
	if was := st.LatestReadyRevisionName; was != "" && r.get(revisions, c.Namespace, was) == nil {
		st.MarkLatestReadyDeleted()
	}
	return r.report(e, c)
}

// revision has the first sandbox of a revision started, which shows whether it is good.
func (r *reconciler) revision(ctx context.Context, e *entry, v *v1.Revision) error {
	st := &v.Status
	if r.label(v) {
		return r.report(e, v) // and this event brings it back here
	}
	if settled(v) {
		r.scale(e, v)
		return nil
	}
	if why := r.road.refuses(v); why != "" {
		st.InitializeConditions()
		st.ObservedGeneration = v.Generation
		st.MarkResourcesAvailableTrue()
		st.MarkContainerHealthyFalse("NotServedHere", why)
		return r.report(e, v)
	}
	if initialOf(v) == 0 {
		st.InitializeConditions()
		st.ObservedGeneration = v.Generation
		st.MarkResourcesAvailableTrue()
		st.MarkContainerHealthyTrue()
		st.MarkActiveFalse("NoTraffic", "The target is not receiving traffic.")
		return r.report(e, v)
	}
	r.mu.Lock()
	busy := r.proved[v.UID]
	r.proved[v.UID] = true
	r.mu.Unlock()
	if busy {
		return nil
	}
	if err := r.road.lacks(v); err != nil { // no room is made for what cannot start
		r.judge(ctx, e, err)
		return nil
	}
	first := r.road.demand(v)
	first.Wait = roomWithin
	r.road.pool.Acquire(first, func(l *pool.Lease, err error) {
		if err != nil {
			r.judge(ctx, e, err)
			return
		}
		r.begin(ctx, e, v, time.Now(), soonest)
		l.Release(true)
	})
	return nil
}

// begin has a revision whose first sandbox is good have as many as its initial scale says, and be
// judged then.
func (r *reconciler) begin(ctx context.Context, e *entry, v *v1.Revision, since time.Time,
	next time.Duration) {
	initial := initialOf(v)
	achieved := !r.leaveNone(v) && r.road.scales.begin(v, initial)
	switch gone := r.leaveNone(v); {
	case achieved, gone:
		r.judge(ctx, e, nil)
	case time.Since(since) > roomWithin:
		r.judge(ctx, e, &pool.Refused{Why: fmt.Sprintf("the initial scale of %d sandboxes has "+
			"not been reached within %s", initial, roomWithin)})
	case ctx.Err() == nil:
		time.AfterFunc(next, func() { r.begin(ctx, e, v, since, min(2*next, betweenHurried)) })
	}
}

// leaveNone ends the sandboxes of a revision that was deleted meanwhile. It reports whether it was.
func (r *reconciler) leaveNone(v *v1.Revision) (gone bool) {
	now := r.get(revisions, v.Namespace, v.Name)
	if gone = now == nil || now.object.GetUID() != v.UID; gone {
		r.road.scales.forget(v)
	}
	return gone
}

// settled reports whether it is known that a revision runs, or that no later start will go better.
func settled(v *v1.Revision) bool {
	ready := v.Status.GetCondition(v1.RevisionConditionReady)
	return v.Status.ObservedGeneration == v.Generation && !ready.IsUnknown() &&
		ready.GetReason() != unschedulable && ready.GetReason() != unconfigured
}

// scale has a revision have sandboxes as its load and its annotations say; if no route leads to it,
// it keeps none.
func (r *reconciler) scale(e *entry, v *v1.Revision) {
	r.mu.Lock()
	routed := len(r.of[ref{revisions, e.name}]) > 0
	r.mu.Unlock()
	r.road.scales.follow(v, routed && v.IsReady())
	r.leaveNone(v)
}

// judge writes into a revision's status how its first start went. Where a later start may go
// better, there is one.
func (r *reconciler) judge(ctx context.Context, e *entry, how error) {
	uid := e.object.GetUID()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.proved, uid)
	}()
	again, since := false, e.object.GetCreationTimestamp().Time
	var refused *pool.Refused
	var lacking *lacking
	r.mu.Lock()
	if errors.As(how, &lacking) {
		r.lacked[uid] = time.Now()
	}
	if at := r.lacked[uid]; at.After(since) {
		since = at
	}
	r.mu.Unlock()
	err := untilDone(func() error {
		now := r.get(revisions, e.name.namespace, e.name.name)
		if now == nil || now.object.GetUID() != uid {
			return nil
		}
		v := now.object.DeepCopyObject().(*v1.Revision)
		st := &v.Status
		st.InitializeConditions()
		st.ObservedGeneration = v.Generation
		switch {
		case how == nil:
			st.MarkResourcesAvailableTrue()
			st.MarkContainerHealthyTrue()
			st.MarkActiveTrue()
		case !mayPass(how):
			st.MarkResourcesAvailableTrue()
			st.MarkContainerHealthyFalse(reason(how), message(v, how))
		case errors.As(how, &lacking): // who makes it ends the wait, however late
			again = true
			st.MarkResourcesAvailableFalse(unconfigured, escaped(how.Error()))
		case time.Since(since) > progressOf(v):
			st.MarkResourcesAvailableFalse(
				v1.ReasonProgressDeadlineExceeded, escaped(message(v, how)))
		case errors.As(how, &refused):
			again = true
			st.MarkResourcesAvailableFalse(unschedulable, escaped(how.Error()))
		default:
			again = true
			st.MarkResourcesAvailableUnknown(v1.ReasonDeploying, escaped(how.Error()))
		}
		return r.report(now, v)
	})
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.log.Error("the status of a revision is not kept", "revision", e.name.name, "err", err)
	}
	if err != nil || again {
		r.queue.AddAfter(ref{revisions, e.name}, betweenLooks)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lacked, uid)
}

// escaped returns a text for those of Knative's functions that take a format.
func escaped(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// progressOf returns how long the first start of a revision may be tried.
func progressOf(v *v1.Revision) time.Duration {
	_, text, _ := serving.ProgressDeadlineAnnotation.Get(v.Annotations)
	if d, err := time.ParseDuration(text); err == nil {
		return d
	}
	return progressWithin
}

// mayPass reports whether a start failed for want of room, of a Secret or ConfigMap, of its node or
// of its registry.
func mayPass(err error) bool {
	var refused *pool.Refused
	var lacking *lacking
	if errors.As(err, &refused) || errors.As(err, &lacking) {
		return true
	}
	switch status.Code(errors.Unwrap(err)) {
	case codes.ResourceExhausted, codes.Unavailable, codes.Aborted, codes.Canceled:
		return true
	}
	return false
}

// reason names why a revision's sandbox did not start, in Knative's words where it has one.
func reason(err error) string {
	said := status.Convert(errors.Unwrap(err))
	// What is Internal may be told in a program's own words.
	if said.Code() != codes.Internal && strings.Contains(said.Message(), "image") {
		return v1.ReasonContainerMissing
	}
	return "ContainerFailed"
}

func message(v *v1.Revision, err error) string {
	if reason(err) == v1.ReasonContainerMissing && len(v.Spec.Containers) == 1 {
		return v1.RevisionContainerMissingMessage(v.Spec.GetContainer().Image, err.Error())
	}
	return "Initial scale was never achieved: " + err.Error()
}
