package knative

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	"knative.dev/serving/pkg/apis/serving/v1beta1"
)

// An object is one of the resources.
type object interface {
	metav1.Object
	runtime.Object
}

// A kind is a sort of objects: what Knative's own definition says of it, or Kubernetes's types, and
// its Go type.
type kind struct {
	Group   string          `json:"group"`
	Version string          `json:"version"`
	Names   naming          `json:"names"`
	Columns []column        `json:"columns"`
	Schema  json.RawMessage `json:"schema"`
	Derived bool            `json:"derived"` // it is shown, and nobody writes it

	shape  shape // of Schema
	make   func() object
	cells  func(object) map[string]any // of its columns without a path
	fields func(object) fields.Set     // by which it is chosen, beside name and namespace
}

type naming struct {
	Kind       string   `json:"kind"`
	Plural     string   `json:"plural"`
	Singular   string   `json:"singular"`
	ShortNames []string `json:"shortNames"`
	Categories []string `json:"categories"`
}

// A column is printed by kubectl.
type column struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Priority int32  `json:"priority"`
	Path     string `json:"jsonPath"`
}

func (k *kind) gv() schema.GroupVersion {
	return schema.GroupVersion{Group: k.Group, Version: k.Version}
}

func (k *kind) gvk() schema.GroupVersionKind { return k.gv().WithKind(k.Names.Kind) }

func (k *kind) resource() schema.GroupResource {
	return k.gv().WithResource(k.Names.Plural).GroupResource()
}

// core reports whether the kind is one of Kubernetes's own.
func (k *kind) core() bool { return k.Group == "" }

func (k *kind) stored() string { return k.Names.Plural + "." + cmp.Or(k.Group, "core") }

// pathOf returns the path of a group's API, without a slash before it.
func pathOf(of schema.GroupVersion) string {
	if of.Group == "" {
		return "api/" + of.Version
	}
	return "apis/" + of.String()
}

//go:embed resources.json
var definitions []byte

var kinds = readKinds()

var (
	services       = kindOf(serving.GroupName, "Service")
	configurations = kindOf(serving.GroupName, "Configuration")
	revisions      = kindOf(serving.GroupName, "Revision")
	routes         = kindOf(serving.GroupName, "Route")
	domainMappings = kindOf(serving.GroupName, "DomainMapping")
	configMaps     = kindOf("", "ConfigMap")
	secrets        = kindOf("", "Secret")
	pods           = kindOf("", "Pod")
	hosts          = kindOf("", "Service")
	events         = kindOf("", "Event")
)

func readKinds() (all []*kind) {
	if err := json.Unmarshal(definitions, &all); err != nil {
		panic(err)
	}
	makes := map[string]func() object{
		"Service." + serving.GroupName:       func() object { return &v1.Service{} },
		"Configuration." + serving.GroupName: func() object { return &v1.Configuration{} },
		"Revision." + serving.GroupName:      func() object { return &v1.Revision{} },
		"Route." + serving.GroupName:         func() object { return &v1.Route{} },
		"DomainMapping." + serving.GroupName: func() object { return &v1beta1.DomainMapping{} },
		"ConfigMap.":                         func() object { return &corev1.ConfigMap{} },
		"Secret.":                            func() object { return &corev1.Secret{} },
		"Pod.":                               func() object { return &corev1.Pod{} },
		"Service.":                           func() object { return &corev1.Service{} },
		"Event.":                             func() object { return &corev1.Event{} },
	}
	cells := map[string]func(object) map[string]any{
		"ConfigMap.": cellsOfConfigMap, "Secret.": cellsOfSecret, "Pod.": cellsOfPod,
		"Service.": cellsOfService, "Event.": cellsOfEvent,
	}
	chosenBy := map[string]func(object) fields.Set{"Pod.": fieldsOfPod, "Event.": fieldsOfEvent}
	for _, k := range all {
		of := k.Names.Kind + "." + k.Group
		k.make, k.cells, k.fields = makes[of], cells[of], chosenBy[of]
		if len(k.Schema) > 0 {
			if err := json.Unmarshal(k.Schema, &k.shape); err != nil {
				panic(err)
			}
		}
		if of != "Event." { // which nobody knows by its name
			k.Columns = append([]column{{Name: "Name", Type: "string", Path: ".metadata.name"}},
				k.Columns...)
		}
	}
	return all
}

// part returns the spec or the status of an object, if it has one.
func part(o object, which string) reflect.Value {
	return reflect.ValueOf(o).Elem().FieldByName(which)
}

// keepStatus gives an object the status of another of its kind: users write none.
func keepStatus(to, from object) {
	if part(to, "Status").IsValid() {
		part(to, "Status").Set(part(from, "Status"))
	}
}

// sameSpec reports whether two objects of a kind want the same. One without a spec has no
// generations.
func sameSpec(a, b object) bool {
	return !part(a, "Spec").IsValid() ||
		equality.Semantic.DeepEqual(part(a, "Spec").Interface(), part(b, "Spec").Interface())
}

// sameStatus reports the same of their statuses.
func sameStatus(a, b object) bool {
	return equality.Semantic.DeepEqual(part(a, "Status").Interface(), part(b, "Status").Interface())
}

// sameLabels reports whether two objects have the same labels and annotations.
func sameLabels(a, b object) bool {
	return maps.Equal(a.GetLabels(), b.GetLabels()) &&
		maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}

// ownerOf returns who controls an object, and of which kind that is, if it is one of ours: users
// may name any other owner.
func ownerOf(o object) (*metav1.OwnerReference, *kind) {
	owner := metav1.GetControllerOf(o)
	if owner == nil {
		return nil, nil
	}
	if k := kindIn(*owner); k != nil {
		return owner, k
	}
	return nil, nil
}

// kindIn returns the kind that a reference names, if it is one of ours whose objects last: a Pod is
// another after each start of the process.
func kindIn(owner metav1.OwnerReference) *kind {
	of, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return nil
	}
	k := known(of.WithKind(owner.Kind))
	if k == nil || k.Derived {
		return nil
	}
	return k
}

// known returns the kind of that group and name, or nil.
func known(of schema.GroupVersionKind) *kind {
	for _, k := range kinds {
		if k.Names.Kind == of.Kind && k.Group == of.Group {
			return k
		}
	}
	return nil
}

func kindOf(group, name string) *kind {
	k := known(schema.GroupVersionKind{Group: group, Kind: name})
	if k == nil {
		panic("there is no kind " + name)
	}
	return k
}

// named returns the kind of a group that has that plural, or nil.
func named(of schema.GroupVersion, plural string) *kind {
	for _, k := range kinds {
		if k.Names.Plural == plural && k.gv() == of {
			return k
		}
	}
	return nil
}

// ofStore returns the kind of a document of the store, or nil.
func ofStore(name string) *kind {
	for _, k := range kinds {
		if k.stored() == name {
			return k
		}
	}
	return nil
}
