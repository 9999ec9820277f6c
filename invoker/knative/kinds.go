package knative

import (
	_ "embed"
	"encoding/json"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
)

// An object is one of Knative's resources, with the rules that Knative wrote for it.
type object interface {
	metav1.Object
	runtime.Object
	apis.Defaultable
	apis.Validatable
}

// A kind is a sort of objects: what Knative's own definition says of it, and its Go type.
type kind struct {
	Names   names           `json:"names"`
	Columns []column        `json:"columns"`
	Schema  json.RawMessage `json:"schema"`

	make func() object
}

type names struct {
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

var group = v1.SchemeGroupVersion

func (k *kind) gvk() schema.GroupVersionKind { return group.WithKind(k.Names.Kind) }
func (k *kind) resource() schema.GroupResource {
	return group.WithResource(k.Names.Plural).GroupResource()
}
func (k *kind) stored() string { return k.Names.Plural + "." + group.Group }

//go:embed resources.json
var definitions []byte

var kinds = readKinds()

var (
	configurations = kindOf("Configuration")
	revisions      = kindOf("Revision")
	routes         = kindOf("Route")
)

func readKinds() (all []*kind) {
	if err := json.Unmarshal(definitions, &all); err != nil {
		panic(err)
	}
	types := map[string]func() object{
		"Service":       func() object { return &v1.Service{} },
		"Configuration": func() object { return &v1.Configuration{} },
		"Revision":      func() object { return &v1.Revision{} },
		"Route":         func() object { return &v1.Route{} },
	}
	for _, k := range all {
		k.make = types[k.Names.Kind]
		k.Columns = append([]column{{Name: "Name", Type: "string", Path: ".metadata.name"}},
			k.Columns...)
	}
	return all
}

// part returns the spec or the status of an object.
func part(o object, which string) reflect.Value {
	return reflect.ValueOf(o).Elem().FieldByName(which)
}

// keepStatus gives an object the status of another of its kind: users write none.
func keepStatus(to, from object) { part(to, "Status").Set(part(from, "Status")) }

// sameSpec reports whether two objects of a kind want the same.
func sameSpec(a, b object) bool {
	return equality.Semantic.DeepEqual(part(a, "Spec").Interface(), part(b, "Spec").Interface())
}

// ownerOf returns who controls an object, and of which kind that is, if it is one of ours: users
// may name any other owner.
func ownerOf(o object) (*metav1.OwnerReference, *kind) {
	owner := metav1.GetControllerOf(o)
	if owner == nil {
		return nil, nil
	}
	of, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil || of.Group != group.Group {
		return nil, nil
	}
	for _, k := range kinds {
		if k.Names.Kind == owner.Kind {
			return owner, k
		}
	}
	return nil, nil
}

func kindOf(name string) *kind {
	for _, k := range kinds {
		if k.Names.Kind == name {
			return k
		}
	}
	panic("there is no kind " + name)
}

// named returns the kind whose plural is that, or nil.
func named(plural string) *kind {
	for _, k := range kinds {
		if k.Names.Plural == plural {
			return k
		}
	}
	return nil
}

// ofStore returns the kind of a document of the store, or nil.
func ofStore(kind string) *kind {
	plural, of, _ := strings.Cut(kind, ".")
	if of != group.Group {
		return nil
	}
	return named(plural)
}
