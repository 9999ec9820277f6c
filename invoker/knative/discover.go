package knative

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	openapi "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	discovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// kubernetes is the version whose ways the API has. Clients choose theirs by it.
var kubernetes = version.Info{Major: "1", Minor: "35", GitVersion: "v1.35.7+fastiov"}

var verbs = metav1.Verbs{
	"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch",
}

// discover answers what says what there is: the groups, their resources and their schemas.
func (c *call) discover(path string) error {
	if c.r.Method != http.MethodGet {
		return notServed
	}
	accept := c.r.Header.Get("Accept")
	aggregated := strings.Contains(accept, "as=APIGroupDiscoveryList")
	core, ours := groups()
	switch path {
	case "version":
		return c.json(http.StatusOK, kubernetes)
	case "api":
		if aggregated {
			return c.aggregated([]metav1.APIGroup{core})
		}
		return c.json(http.StatusOK, metav1.APIVersions{TypeMeta: typed("APIVersions"),
			Versions: []string{"v1"}})
	case "apis":
		if aggregated {
			return c.aggregated(ours)
		}
		return c.json(http.StatusOK,
			metav1.APIGroupList{TypeMeta: typed("APIGroupList"), Groups: ours})
	case "api/v1/namespaces":
		return c.json(http.StatusOK, map[string]any{"kind": "NamespaceList", "apiVersion": "v1",
			"metadata": map[string]any{}, "items": []any{c.namespace()}})
	case "api/v1/namespaces/" + c.user.Namespace:
		return c.json(http.StatusOK, c.namespace())
	case "openapi/v2":
		return c.openapiV2()
	case "openapi/v3":
		paths := map[string]any{}
		for _, of := range versions(append(ours, core)) {
			paths[pathOf(of)] = map[string]string{"serverRelativeURL": "/openapi/v3/" + pathOf(of)}
		}
		return c.json(http.StatusOK, map[string]any{"paths": paths})
	}
	for _, g := range ours {
		if path == "apis/"+g.Name {
			g.TypeMeta = typed("APIGroup")
			return c.json(http.StatusOK, g)
		}
	}
	for _, of := range versions(append(ours, core)) {
		switch path {
		case pathOf(of):
			return c.json(http.StatusOK, metav1.APIResourceList{
				TypeMeta: typed("APIResourceList"), GroupVersion: of.String(),
				APIResources: served(of)})
		case "openapi/v3/" + pathOf(of):
			return c.json(http.StatusOK, openapiV3(of))
		}
	}
	return notServed
}

// groups returns Kubernetes's own group, and the others, each with its versions.
func groups() (core metav1.APIGroup, others []metav1.APIGroup) {
	all := map[string]*metav1.APIGroup{}
	var order []string
	for _, k := range kinds {
		g := all[k.Group]
		v := metav1.GroupVersionForDiscovery{GroupVersion: k.gv().String(), Version: k.Version}
		if g == nil {
			g = &metav1.APIGroup{Name: k.Group, PreferredVersion: v}
			all[k.Group] = g
			order = append(order, k.Group)
		}
		if !slices.Contains(g.Versions, v) {
			g.Versions = append(g.Versions, v)
		}
	}
	for _, name := range order {
		if name == "" {
			core = *all[name]
		} else {
			others = append(others, *all[name])
		}
	}
	return core, others
}

func versions(of []metav1.APIGroup) (all []schema.GroupVersion) {
	for _, g := range of {
		for _, v := range g.Versions {
			all = append(all, schema.GroupVersion{Group: g.Name, Version: v.Version})
		}
	}
	return all
}

func typed(kind string) metav1.TypeMeta { return metav1.TypeMeta{Kind: kind, APIVersion: "v1"} }

// namespace returns the caller's namespace, the only one that it sees.
func (c *call) namespace() any {
	return map[string]any{"kind": "Namespace", "apiVersion": "v1",
		"metadata": map[string]any{"name": c.user.Namespace},
		"status":   map[string]any{"phase": "Active"}}
}

// namespaces is the resource that no kind is of: there is one, the caller's own.
var namespaces = metav1.APIResource{Name: "namespaces", SingularName: "namespace",
	Kind: "Namespace", ShortNames: []string{"ns"}, Verbs: metav1.Verbs{"get", "list"}}

func (k *kind) verbs() metav1.Verbs {
	if k.Derived {
		return metav1.Verbs{"get", "list", "watch"}
	}
	return verbs
}

func served(of schema.GroupVersion) (all []metav1.APIResource) {
	if of.Group == "" {
		all = append(all, namespaces)
	}
	for _, k := range kinds {
		if k.gv() == of {
			all = append(all, metav1.APIResource{Name: k.Names.Plural,
				SingularName: k.Names.Singular, Namespaced: true, Kind: k.Names.Kind,
				Verbs: k.verbs(), ShortNames: k.Names.ShortNames, Categories: k.Names.Categories})
		}
	}
	return all
}

func (c *call) aggregated(groups []metav1.APIGroup) error {
	list := discovery.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{
			Kind: "APIGroupDiscoveryList", APIVersion: discovery.SchemeGroupVersion.String()},
	}
	for _, g := range groups {
		d := discovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.Name}}
		for _, of := range versions([]metav1.APIGroup{g}) {
			d.Versions = append(d.Versions, discovered(of))
		}
		list.Items = append(list.Items, d)
	}
	body, err := json.Marshal(list)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type",
		"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	_, err = c.w.Write(body)
	return ignore(err)
}

func discovered(of schema.GroupVersion) discovery.APIVersionDiscovery {
	v := discovery.APIVersionDiscovery{
		Version: of.Version, Freshness: discovery.DiscoveryFreshnessCurrent}
	for _, r := range served(of) {
		scope := discovery.ScopeCluster
		if r.Namespaced {
			scope = discovery.ScopeNamespace
		}
		v.Resources = append(v.Resources, discovery.APIResourceDiscovery{
			Resource: r.Name, SingularResource: r.SingularName, Scope: scope, Verbs: r.Verbs,
			ResponseKind: &metav1.GroupVersionKind{
				Group: of.Group, Version: of.Version, Kind: r.Kind},
			ShortNames: r.ShortNames, Categories: r.Categories,
		})
	}
	return v
}

// schemas returns the schemas of some kinds by name, each with the kind that it is of.
func schemas(of []*kind) map[string]any {
	all := map[string]any{}
	for _, k := range of {
		var s map[string]any
		_ = json.Unmarshal(k.Schema, &s) // kinds were read from the same text
		s["x-kubernetes-group-version-kind"] = []any{gvkOf(k)}
		name := "io.k8s.api.core."
		if !k.core() {
			name = "dev.knative.serving."
		}
		all[name+k.Version+"."+k.Names.Kind] = s
	}
	return all
}

func gvkOf(k *kind) map[string]any {
	return map[string]any{"group": k.Group, "version": k.Version, "kind": k.Names.Kind}
}

// operations returns the paths of some kinds with what clients look for in them: the kind, and that
// the server itself checks fields.
func operations(of []*kind, parameter func(name string) any) map[string]any {
	all, ok := map[string]any{}, map[string]any{"description": "OK"}
	for _, k := range of {
		op := func(action string, parameters ...any) map[string]any {
			return map[string]any{
				"parameters": parameters, "x-kubernetes-action": action,
				"x-kubernetes-group-version-kind": gvkOf(k),
				"responses":                       map[string]any{"200": ok},
			}
		}
		checks, dry := parameter("fieldValidation"), parameter("dryRun")
		path := "/" + pathOf(k.gv()) + "/namespaces/{namespace}/" + k.Names.Plural
		all[path] = map[string]any{"get": op("list"), "post": op("post", checks, dry)}
		all[path+"/{name}"] = map[string]any{"get": op("get"), "delete": op("delete"),
			"put": op("put", checks, dry), "patch": op("patch", checks, dry)}
	}
	return all
}

func openapiV3(of schema.GroupVersion) any {
	ours := slices.DeleteFunc(slices.Clone(kinds), func(k *kind) bool { return k.gv() != of })
	return map[string]any{"openapi": "3.0.0",
		"info": map[string]any{"title": "Knative Serving", "version": of.Version},
		"paths": operations(ours, func(name string) any {
			return map[string]any{"name": name, "in": "query",
				"schema": map[string]any{"type": "string"}}
		}),
		"components": map[string]any{"schemas": schemas(ours)}}
}

// plain returns a schema without what version 2 of OpenAPI has no words for.
func plain(schema any) any {
	switch s := schema.(type) {
	case map[string]any:
		for _, key := range []string{"anyOf", "oneOf", "allOf", "not", "nullable"} {
			delete(s, key)
		}
		for _, part := range s {
			plain(part)
		}
	case []any:
		for _, part := range s {
			plain(part)
		}
	}
	return schema
}

func (c *call) openapiV2() error {
	body, err := json.Marshal(map[string]any{"swagger": "2.0",
		"info": map[string]any{"title": "Knative Serving", "version": "v1"},
		"paths": operations(kinds, func(name string) any {
			return map[string]any{"name": name, "in": "query", "type": "string"}
		}),
		"definitions": plain(schemas(kinds))})
	if err != nil || !strings.Contains(c.r.Header.Get("Accept"), "protobuf") {
		c.w.Header().Set("Content-Type", "application/json")
		_, _ = c.w.Write(body)
		return err
	}
	doc, err := openapi.ParseDocument(body)
	if err != nil {
		return err
	}
	if body, err = proto.Marshal(doc); err != nil {
		return err
	}
	c.w.Header().Set("Content-Type",
		"application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
	_, err = c.w.Write(body)
	return ignore(err)
}
