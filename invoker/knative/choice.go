package knative

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// A choice is which objects of a kind a request is about.
type choice struct {
	label labels.Selector
	field fields.Selector
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
