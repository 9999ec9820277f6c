package knative

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
)

// What Knative's packages do not say, and a cluster's server does: in its words, as the oracle
// showed them.

// A shape holds what a definition says of a value: which fields it may have.
type shape struct {
	Properties map[string]*shape `json:"properties"`
	Additional *anyShape         `json:"additionalProperties"`
	Items      *shape            `json:"items"`
	Default    json.RawMessage   `json:"default"`
	Free       bool              `json:"x-kubernetes-preserve-unknown-fields"`
}

// An anyShape is the shape of values under any key, or a boolean.
type anyShape struct{ *shape }

// UnmarshalJSON implements json.Unmarshaler.
func (a *anyShape) UnmarshalJSON(text []byte) error {
	if text[0] != '{' {
		return nil
	}
	return json.Unmarshal(text, &a.shape)
}

// pruned returns an object of a user's with the defaults of its definition, and without the spec's
// fields that this does not have, which it names. Knative's types have more, of Kubernetes's.
func (k *kind) pruned(body []byte) (pruned []byte, unknown []error) {
	if k.core() {
		return body, nil
	}
	var o map[string]any
	if json.Unmarshal(body, &o) != nil || k.shape.Properties["spec"] == nil {
		return body, nil // whoever decodes it says why
	}
	if changed, unknown := k.shape.Properties["spec"].prune("spec", o["spec"]); changed {
		if text, err := json.Marshal(o); err == nil {
			return text, unknown
		}
	}
	return body, nil
}

// mostUnknown bounds how many unknown fields a request is told of, as Kubernetes does.
const mostUnknown = 100

// prune gives the value at a path its defaults, takes unknown fields out, which it names, and
// reports whether it changed.
func (s *shape) prune(path string, value any) (changed bool, unknown []error) {
	name := func(more ...error) {
		unknown = append(unknown, more[:min(len(more), mostUnknown-len(unknown))]...)
	}
	prune := func(next *shape, path string, value any) {
		also, more := next.prune(path, value)
		changed = changed || also
		name(more...)
	}
	switch value := value.(type) {
	case map[string]any:
		for key, of := range s.Properties {
			var otherwise any
			if value[key] == nil && of.Default != nil &&
				json.Unmarshal(of.Default, &otherwise) == nil {
				value[key], changed = otherwise, true
			}
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			switch next := s.Properties[key]; {
			case next != nil:
				prune(next, path+"."+key, value[key])
			case s.Additional != nil && s.Additional.shape != nil:
				prune(s.Additional.shape, path+"."+key, value[key])
			case s.Additional == nil && !s.Free && len(s.Properties) > 0:
				delete(value, key)
				changed = true
				if len(unknown) < mostUnknown { // else it is named in vain
					name(fmt.Errorf("unknown field %.256q", path+"."+key))
				}
			}
		}
	case []any:
		for i, inner := range value {
			if s.Items != nil {
				prune(s.Items, fmt.Sprintf("%s[%d]", path, i), inner)
			}
		}
	}
	return changed, unknown
}

// mostLookedAt bounds the containers and volumes that Knative's rules are asked about: they take
// time by the square of them.
const mostLookedAt = 512

// withoutContainers returns what a cluster says of a revision, or a template of one, that says no
// containers; and what is said here of one that says very many.
func withoutContainers(k *kind, o object) error {
	path, spec := field.NewPath("spec"), (*v1.RevisionSpec)(nil)
	switch o := o.(type) {
	case *v1.Service:
		path, spec = path.Child("template", "spec"), &o.Spec.Template.Spec
	case *v1.Configuration:
		path, spec = path.Child("template", "spec"), &o.Spec.Template.Spec
	case *v1.Revision:
		spec = &o.Spec
	}
	if spec == nil {
		return nil
	}
	n := len(spec.Containers) + len(spec.InitContainers) + len(spec.Volumes)
	if n > mostLookedAt {
		return apierrors.NewInvalid(k.gvk().GroupKind(), o.GetName(), field.ErrorList{
			field.TooMany(path, n, mostLookedAt)})
	}
	if spec.Containers != nil {
		return nil
	}
	path = path.Child("containers")
	return apierrors.NewInvalid(k.gvk().GroupKind(), o.GetName(), field.ErrorList{
		field.TypeInvalid(path, "null", fmt.Sprintf("%s in body must be of type array: %q", path,
			"null"))})
}

// unversioned returns what a cluster says of an update that does not say of which version it is.
func unversioned(k *kind, of string) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: k.Group, Kind: k.Names.Plural}, of,
		field.ErrorList{field.Invalid(field.NewPath("metadata", "resourceVersion"), 0,
			"must be specified for an update")})
}

// undecodable returns what a cluster says of a body that cannot be read as an object of a kind.
func undecodable(k *kind, err error) error {
	if known := (apierrors.APIStatus)(nil); errors.As(err, &known) {
		return err
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v",
		k.Names.Kind, k.Version, k.Names.Kind, err))
}

// unpatchable returns what a cluster says of a patch that leaves no object of the kind. It quotes
// what is left, unless that may be a secret.
func unpatchable(k *kind, doc []byte, err error) error {
	if known := (apierrors.APIStatus)(nil); k.core() || errors.As(err, &known) {
		return undecodable(k, err)
	}
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), string(doc), err.Error())})
}

// inapplicable returns what a cluster says of a JSON patch that cannot be applied.
func inapplicable(err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "",
		schema.GroupResource{}, "", err.Error(), 0, false)
}

// unknownForm returns what a cluster says of a patch whose form it does not know.
func unknownForm(k *kind, of string) error {
	return apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch",
		k.resource(), of, "the body of the request was in an unknown format - accepted media "+
			"types include: application/json-patch+json, application/merge-patch+json, "+
			"application/apply-patch+yaml", 0, true)
}

// alreadyThere returns what a cluster says of an object that cannot be made as there is one.
func (w *world) alreadyThere(k *kind, o object, err error) error {
	var is *apierrors.StatusError
	old := w.get(k, o.GetNamespace(), o.GetName())
	if !apierrors.IsAlreadyExists(err) || !errors.As(err, &is) || old == nil ||
		old.object.GetDeletionTimestamp() == nil {
		return err
	}
	said := is.Status()
	said.Message = "object is being deleted: " + said.Message
	return &apierrors.StatusError{ErrStatus: said}
}
