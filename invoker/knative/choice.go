package knative

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A choice is which objects of a kind a request is about.
type choice struct {
	label labels.Selector
	field fields.Selector
}

// listing returns how a request wants objects listed or watched, and which.
func (c *call) listing(k *kind) (how metav1.ListOptions, which choice, err error) {
	query := c.r.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_ListOptions(&query, &how, nil); err != nil {
		return how, which, apierrors.NewBadRequest(err.Error())
	}
	if wrong := validation.ValidateListOptions(&internalversion.ListOptions{
		Watch: how.Watch, Continue: how.Continue, SendInitialEvents: how.SendInitialEvents,
		ResourceVersion: how.ResourceVersion, ResourceVersionMatch: how.ResourceVersionMatch,
	}, true); len(wrong) > 0 {
		return how, which, apierrors.NewInvalid(
			schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", wrong)
	}
	which, err = k.chosen(how.LabelSelector, how.FieldSelector)
	return how, which, err
}

func (k *kind) chosen(label, field string) (choice, error) {
	l, err := labels.Parse(label)
	if err != nil {
		return choice{}, apierrors.NewBadRequest(err.Error())
	}
	f, err := fields.ParseSelector(field)
	if err != nil {
		return choice{}, apierrors.NewBadRequest(err.Error())
	}
	for _, of := range f.Requirements() {
		if _, known := k.fieldsOf(k.make())[of.Field]; !known {
			return choice{}, apierrors.NewBadRequest("field label not supported: " + of.Field)
		}
	}
	return choice{l, f}, nil
}

func (c choice) all() bool { return c.label.Empty() && c.field.Empty() }

// takes reports whether an object is one of them. The object itself is asked for only where it is
// chosen by a field that its kind alone has.
func (c choice) takes(e *encoded, itself func() object) bool {
	if !c.label.Matches(labels.Set(e.labels)) {
		return false
	}
	one, exact := c.field.RequiresExactMatch("metadata.name")
	switch {
	case c.field.Empty():
		return true
	case exact && one != e.name.name:
		return false
	case e.kind.fields != nil:
		return c.field.Matches(e.kind.fieldsOf(itself()))
	}
	return c.field.Matches(fields.Set{"metadata.name": e.name.name,
		"metadata.namespace": e.name.namespace})
}

// fieldsOf returns the fields by which an object is chosen.
func (k *kind) fieldsOf(o object) fields.Set {
	all := fields.Set{}
	if k.fields != nil {
		all = k.fields(o)
	}
	all["metadata.name"], all["metadata.namespace"] = o.GetName(), o.GetNamespace()
	return all
}
