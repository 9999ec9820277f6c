package main

import (
	"reflect"
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
			Schema: schemaOf(reflect.TypeOf(of))}
	}
	return []resource{
		made(names{"ConfigMap", "configmaps", "configmap", []string{"cm"}, nil},
			corev1.ConfigMap{}, column{Name: "Data", Type: "integer"}, age),
		made(names{"Secret", "secrets", "secret", nil, nil}, corev1.Secret{},
			column{Name: "Type", Type: "string", Path: ".type"},
			column{Name: "Data", Type: "integer"}, age),
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

// schemaOf returns the schema of the JSON that a Go type has.
func schemaOf(t reflect.Type) map[string]any {
	if s := known[t]; s != nil {
		all := map[string]any{}
		for key, value := range s {
			all[key] = value
		}
		return all
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Struct:
		return structure(t)
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer", "format": t.Kind().String()}
	}
	return map[string]any{"type": "string"}
}

func structure(t reflect.Type) map[string]any {
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
		part := schemaOf(field.Type)
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
