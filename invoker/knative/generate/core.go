package main

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

type names struct {
	Kind       string   `json:"kind"`
	Plural     string   `json:"plural"`
	Singular   string   `json:"singular"`
	ShortNames []string `json:"shortNames,omitempty"`
	Categories []string `json:"categories,omitempty"`
}

// A column is one that kubectl prints. One without a path is worked out by the server.
type column struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Priority int    `json:"priority,omitempty"`
	Path     string `json:"jsonPath,omitempty"`
}

var age = column{Name: "Age", Type: "date", Path: ".metadata.creationTimestamp"}

// core returns Kubernetes's own resources, with the columns that its server prints.
func core() []resource {
	made := func(n names, of any, columns ...column) resource {
		return resource{Version: "v1", Names: n, Columns: columns,
			Schema: schemaOf(reflect.TypeOf(of), deepest)}
	}
	shown := func(n names, of any, columns ...column) resource {
		r := made(n, of, columns...)
		r.Derived, r.Schema = true, schemaOf(reflect.TypeOf(of), shallow)
		return r
	}
	text := func(all ...string) (columns []column) {
		for _, name := range all {
			columns = append(columns, column{Name: name, Type: "string"})
		}
		return columns
	}
	wide := func(columns ...column) []column {
		for i := range columns {
			columns[i].Priority = 1
		}
		return columns
	}
	return []resource{
		made(names{"ConfigMap", "configmaps", "configmap", []string{"cm"}, nil},
			corev1.ConfigMap{}, column{Name: "Data", Type: "integer"}, age),
		made(names{"Secret", "secrets", "secret", nil, nil}, corev1.Secret{},
			column{Name: "Type", Type: "string", Path: ".type"},
			column{Name: "Data", Type: "integer"}, age),
		shown(names{"Pod", "pods", "pod", []string{"po"}, []string{"all"}}, corev1.Pod{},
			slices.Concat(text("Ready", "Status"),
				[]column{{Name: "Restarts", Type: "integer"}, age},
				wide(column{Name: "IP", Type: "string", Path: ".status.podIP"},
					column{Name: "Node", Type: "string", Path: ".spec.nodeName"}))...),
		shown(names{"Service", "services", "service", []string{"svc"}, []string{"all"}},
			corev1.Service{}, slices.Concat(
				[]column{{Name: "Type", Type: "string", Path: ".spec.type"}},
				text("Cluster-IP", "External-IP", "Port(s)"), []column{age},
				wide(text("Selector")...))...),
		shown(names{"Event", "events", "event", []string{"ev"}, nil}, corev1.Event{},
			slices.Concat(text("Last Seen"), []column{
				{Name: "Type", Type: "string", Path: ".type"},
				{Name: "Reason", Type: "string", Path: ".reason"}}, text("Object"),
				wide(column{Name: "Source", Type: "string", Path: ".source.component"}),
				[]column{{Name: "Message", Type: "string", Path: ".message"}},
				wide(slices.Concat(text("First Seen"), []column{
					{Name: "Count", Type: "integer", Path: ".count"},
					{Name: "Name", Type: "string", Path: ".metadata.name"}})...))...),
	}
}

// documented is a type of Kubernetes that says what its fields are.
type documented interface{ SwaggerDoc() map[string]string }

var known = map[reflect.Type]map[string]any{
	reflect.TypeFor[metav1.Time]():        {"type": "string", "format": "date-time"},
	reflect.TypeFor[metav1.MicroTime]():   {"type": "string", "format": "date-time"},
	reflect.TypeFor[metav1.ObjectMeta]():  {"type": "object"}, // clients know it
	reflect.TypeFor[quantity.Quantity]():  {"type": "string"},
	reflect.TypeFor[intstr.IntOrString](): {"x-kubernetes-int-or-string": true},
	reflect.TypeFor[[]byte]():             {"type": "string", "format": "byte"},
}

// So deep are schemas: of what users write, to its end; of what they only read, its first fields.
const deepest, shallow = 20, 3

// schemaOf returns the schema of the JSON that a Go type has.
func schemaOf(t reflect.Type, depth int) map[string]any {
	if s := known[t]; s != nil {
		all := map[string]any{}
		for key, value := range s {
			all[key] = value
		}
		return all
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), depth)
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem(), depth)}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem(), depth)}
	case reflect.Struct:
		return structure(t, depth)
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer", "format": t.Kind().String()}
	}
	return map[string]any{"type": "string"}
}

func structure(t reflect.Type, depth int) map[string]any {
	if depth == 0 {
		return map[string]any{"type": "object"}
	}
	words := map[string]string{}
	if d, is := reflect.Zero(t).Interface().(documented); is {
		words = d.SwaggerDoc()
	}
	parts := map[string]any{}
	for _, field := range reflect.VisibleFields(t) {
		if field.Anonymous && field.Tag.Get("json") == ",inline" || !field.IsExported() ||
			covered(t, field) {
			continue // its own fields are here
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		part := schemaOf(field.Type, depth-1)
		if text := words[name]; text != "" {
			part["description"] = text
		}
		parts[name] = part
	}
	s := map[string]any{"type": "object", "properties": parts}
	if text := words[""]; text != "" {
		s["description"] = text
	}
	return s
}

// covered reports whether a field belongs to one that JSON has as a part of its own.
func covered(t reflect.Type, field reflect.StructField) bool {
	for n := 1; n < len(field.Index); n++ {
		if t.FieldByIndex(field.Index[:n]).Tag.Get("json") != ",inline" {
			return true
		}
	}
	return false
}
