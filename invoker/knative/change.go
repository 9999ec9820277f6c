package knative

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	authentication "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"knative.dev/pkg/apis"
	"knative.dev/serving/pkg/apis/config"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/store"
)

// A writer changes objects by Knative's rules, for one user or for the reconcilers.
type writer struct {
	*world
	user string // empty: the reconcilers
	most func(namespace string) store.Space
	dry  bool              // nothing is kept
	warn func(text string) // tells the user
}

// rules holds what a cluster's operator would set. Knative's defaults and checks follow it.
var rules = func() *config.Config {
	c := config.FromContextOrDefaults(context.Background())
	scale := *c.Autoscaler
	scale.AllowZeroInitialScale = true
	features := *c.Features
	features.PodSpecRuntimeClassName = config.Enabled
	return &config.Config{Defaults: c.Defaults, Features: &features, Autoscaler: &scale}
}()

func (w *writer) context(ctx context.Context) context.Context {
	ctx = config.ToContext(ctx, rules)
	if w.user == "" {
		return ctx
	}
	return apis.WithUserInfo(ctx, &authentication.UserInfo{Username: w.user})
}

// create keeps a new object.
func (w *writer) create(ctx context.Context, k *kind, o object) (*entry, error) {
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(o.GetGenerateName() + rand.String(5))
	}
	if o.GetName() == "" {
		return nil, apierrors.NewInvalid(k.gvk().GroupKind(), "", field.ErrorList{field.Required(
			field.NewPath("metadata", "name"), "name or generateName is required")})
	}
	if why := validation.IsDNS1123Label(o.GetNamespace()); why != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf(
			"the namespace %q cannot be part of a URL: %s", o.GetNamespace(), why[0]))
	}
	o.SetUID(uuid.NewUUID())
	o.SetCreationTimestamp(metav1.NewTime(time.Now().UTC().Truncate(time.Second)))
	if part(o, "Spec").IsValid() {
		o.SetGeneration(1)
	}
	o.SetDeletionTimestamp(nil)
	o.SetManagedFields(nil)
	o.SetSelfLink("")
	keepStatus(o, k.make())
	ctx = apis.WithinCreate(w.context(ctx))
	setDefaults(ctx, o)
	if err := w.check(ctx, k, o, nil); err != nil {
		return nil, err
	}
	e, err := w.keep(ctx, k, o, nil, w.most(o.GetNamespace()))
	return e, w.alreadyThere(k, o, err)
}

// update replaces an object of a user's. What users do not write stays as it was.
func (w *writer) update(ctx context.Context, old *entry, o object) (*entry, error) {
	was := old.object
	if v := o.GetResourceVersion(); v != "" && v != strconv.FormatUint(old.revision, 10) {
		return nil, conflict(old.kind, old.name.name)
	}
	if id := o.GetUID(); id != "" && id != was.GetUID() {
		why := fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s",
			id, was.GetUID())
		return nil, apierrors.NewConflict(old.kind.resource(), old.name.name, errors.New(why))
	}
	o.SetUID(was.GetUID())
	o.SetCreationTimestamp(was.GetCreationTimestamp())
	o.SetGeneration(was.GetGeneration())
	o.SetDeletionTimestamp(was.GetDeletionTimestamp())
	o.SetDeletionGracePeriodSeconds(was.GetDeletionGracePeriodSeconds())
	o.SetManagedFields(nil)
	keepStatus(o, was)
	ctx = apis.WithinUpdate(w.context(ctx), was)
	setDefaults(ctx, o)
	if err := w.check(ctx, old.kind, o, was); err != nil {
		return nil, err
	}
	body, err := document(old.kind, o)
	if err != nil || old.is(body, bytes.Equal) {
		return old, err
	}
	if !sameSpec(o, was) {
		o.SetGeneration(was.GetGeneration() + 1)
		if body, err = document(old.kind, o); err != nil {
			return nil, err
		}
	}
	e, err := w.keepChanged(ctx, old.kind, o, body, old, w.most(o.GetNamespace()))
	if err == nil && !w.dry && e.object.GetDeletionTimestamp() != nil &&
		len(e.object.GetFinalizers()) == 0 { // nothing holds it any more
		if err = w.remove(ctx, e); apierrors.IsConflict(err) { // the reconcilers remove it, too
			err = nil
		}
		err = ignoreMissing(err)
	}
	return e, err
}

// report replaces the status, labels and annotations of an object, if that changes anything.
func (w *writer) report(old *entry, o object) error {
	if sameStatus(old.object, o) && sameLabels(old.object, o) {
		return nil
	}
	body, err := document(old.kind, o)
	if err != nil || old.is(body, same) {
		return err
	}
	return w.note(o, body, old)
}

// same reports whether two documents differ in nothing but the times of conditions: a pass that
// sets a condition once more gives it another one.
func same(a, b []byte) bool {
	time := []byte(`"lastTransitionTime":"`) // within a string, its quotes are others
	for {
		i, j := bytes.Index(a, time), bytes.Index(b, time)
		if i < 0 || j < 0 {
			return bytes.Equal(a, b)
		}
		if !bytes.Equal(a[:i], b[:j]) {
			return false
		}
		_, a, _ = bytes.Cut(a[i+len(time):], []byte(`"`))
		_, b, _ = bytes.Cut(b[j+len(time):], []byte(`"`))
	}
}

// is reports whether an entry has that document, by what counts as equal.
func (e *encoded) is(doc []byte, equal func(a, b []byte) bool) bool {
	before, after := e.around()
	return bytes.HasPrefix(doc, before) && equal(doc[len(before):], after)
}

// mark replaces what neither users nor the status say of an object. It has room also in a namespace
// that is full.
func (w *writer) mark(ctx context.Context, old *entry, o object) error {
	_, err := w.keep(ctx, old.kind, o, old, store.Unbounded)
	return err
}

// keep puts an object, if that changes anything.
func (w *writer) keep(ctx context.Context, k *kind, o object, old *entry,
	most store.Space) (*entry, error) {
	body, err := document(k, o)
	if err != nil {
		return nil, err
	}
	if old != nil && old.is(body, same) {
		return old, nil
	}
	return w.keepChanged(ctx, k, o, body, old, most)
}

func (w *writer) keepChanged(ctx context.Context, k *kind, o object, body []byte, old *entry,
	most store.Space) (*entry, error) {
	if w.dry {
		if old == nil && w.get(k, o.GetNamespace(), o.GetName()) != nil {
			return nil, apierrors.NewAlreadyExists(k.resource(), o.GetName())
		}
		e := &entry{&encoded{kind: k, name: name{o.GetNamespace(), o.GetName()}}, o}
		if old != nil {
			e.revision = old.revision
		}
		return e, e.encode()
	}
	return w.put(ctx, k, o, body, old, most)
}

// check returns what Kubernetes has against an object in the place of another, or of none; or
// Knative, as its webhook words it.
func (w *writer) check(ctx context.Context, k *kind, o, was object) error {
	if w.user == "" {
		return nil // what was made of a good object is good
	}
	if wrong := namesIn(o, was); len(wrong) > 0 {
		return apierrors.NewInvalid(k.gvk().GroupKind(), o.GetName(), wrong)
	}
	if err := withoutContainers(k, o); err != nil {
		return err
	}
	ours, is := o.(apis.Validatable)
	if !is {
		return checkCore(ctx, k, o)
	}
	found := ours.Validate(ctx)
	for _, warning := range found.Filter(apis.WarningLevel).WrappedErrors() {
		w.warn(warning.Error())
	}
	wrong := found.Filter(apis.ErrorLevel)
	if wrong == nil {
		return nil
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 400,
		Reason: metav1.StatusReasonBadRequest,
		Message: `admission webhook "validation.webhook.serving.knative.dev" denied ` +
			"the request: validation failed: " + wrong.Error()}}
}

// mostOwners bounds an object's owners: each of its changes is looked at for all of them.
const mostOwners = 64

// namesIn returns what Kubernetes has against an object's labels, those of its revisions, its
// owners and its finalizers, of which none is added while it is about to go.
func namesIn(o, was object) field.ErrorList {
	meta := field.NewPath("metadata")
	owners := o.GetOwnerReferences()
	wrong := slices.Concat(metavalidation.ValidateLabels(o.GetLabels(), meta.Child("labels")),
		apivalidation.ValidateOwnerReferences(owners, meta.Child("ownerReferences")),
		apivalidation.ValidateFinalizers(o.GetFinalizers(), meta.Child("finalizers")))
	if len(owners) > mostOwners {
		wrong = append(wrong, field.TooMany(meta.Child("ownerReferences"), len(owners), mostOwners))
	}
	if was != nil && was.GetDeletionTimestamp() != nil {
		wrong = append(wrong, apivalidation.ValidateNoNewFinalizers(o.GetFinalizers(),
			was.GetFinalizers(), meta.Child("finalizers"))...)
	}
	var template *v1.RevisionTemplateSpec
	switch o := o.(type) {
	case *v1.Service:
		template = &o.Spec.Template
	case *v1.Configuration:
		template = &o.Spec.Template
	default:
		return wrong
	}
	return append(wrong, metavalidation.ValidateLabels(template.Labels,
		field.NewPath("spec", "template", "metadata", "labels"))...)
}

// untilDone does what may meet a change of another, until it does not.
func untilDone(do func() error) (err error) {
	for range 10 {
		if err = do(); !apierrors.IsConflict(err) {
			return err
		}
	}
	return err
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
