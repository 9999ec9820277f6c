package knative

import (
	"encoding/json"
	"net/http"
	"strings"

	openapi "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	discovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	ours := metav1.GroupVersionForDiscovery{
		GroupVersion: group.String(), Version: group.Version}
	serving := metav1.APIGroup{Name: group.Group,
		Versions: []metav1.GroupVersionForDiscovery{ours}, PreferredVersion: ours}
	switch path {
	case "version":
		return c.json(http.StatusOK, kubernetes)
	case "api":
		if aggregated {
			return c.aggregated(aggregatedCore())
		}
		return c.json(http.StatusOK, metav1.APIVersions{TypeMeta: typed("APIVersions"),
			Versions: []string{"v1"}})
	case "apis":
		if aggregated {
			return c.aggregated(aggregatedServing())
		}
		return c.json(http.StatusOK, metav1.APIGroupList{TypeMeta: typed("APIGroupList"),
			Groups: []metav1.APIGroup{serving}})
	case "apis/" + group.Group:
		serving.TypeMeta = typed("APIGroup")
		return c.json(http.StatusOK, serving)
	case "apis/" + group.String():
		return c.json(http.StatusOK, metav1.APIResourceList{TypeMeta: typed("APIResourceList"),
			GroupVersion: group.String(), APIResources: served()})
	case "api/v1":
		return c.json(http.StatusOK, metav1.APIResourceList{TypeMeta: typed("APIResourceList"),
			GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "namespaces",
				SingularName: "namespace", Kind: "Namespace", ShortNames: []string{"ns"},
				Verbs: metav1.Verbs{"get", "list"}}}})
	case "api/v1/namespaces":
		return c.json(http.StatusOK, map[string]any{"kind": "NamespaceList", "apiVersion": "v1",
			"metadata": map[string]any{}, "items": []any{c.namespace()}})
	case "api/v1/namespaces/" + c.user.Namespace:
		return c.json(http.StatusOK, c.namespace())
	case "openapi/v2":
		return c.openapiV2()
	case "openapi/v3":
		return c.json(http.StatusOK, map[string]any{"paths": map[string]any{
			"apis/" + group.String(): map[string]string{
				"serverRelativeURL": "/openapi/v3/apis/" + group.String()}}})
	case "openapi/v3/apis/" + group.String():
		return c.json(http.StatusOK, openapiV3())
	}
	return notServed
}

func typed(kind string) metav1.TypeMeta { return metav1.TypeMeta{Kind: kind, APIVersion: "v1"} }

// namespace returns the caller's namespace, the only one that it sees.
func (c *call) namespace() any {
	return map[string]any{"kind": "Namespace", "apiVersion": "v1",
		"metadata": map[string]any{"name": c.user.Namespace},
		"status":   map[string]any{"phase": "Active"}}
}

func served() (all []metav1.APIResource) {
	for _, k := range kinds {
		all = append(all, metav1.APIResource{Name: k.Names.Plural, SingularName: k.Names.Singular,
			Namespaced: true, Kind: k.Names.Kind, Verbs: verbs, ShortNames: k.Names.ShortNames,
			Categories: k.Names.Categories})
	}
	return all
}

func (c *call) aggregated(groups ...discovery.APIGroupDiscovery) error {
	list := discovery.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{
			Kind: "APIGroupDiscoveryList", APIVersion: discovery.SchemeGroupVersion.String()},
		Items: groups,
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

func aggregatedCore() discovery.APIGroupDiscovery {
	return discovery.APIGroupDiscovery{Versions: []discovery.APIVersionDiscovery{{
		Version: "v1", Freshness: discovery.DiscoveryFreshnessCurrent,
		Resources: []discovery.APIResourceDiscovery{{
			Resource: "namespaces", SingularResource: "namespace", ShortNames: []string{"ns"},
			Scope:        discovery.ScopeCluster,
			ResponseKind: &metav1.GroupVersionKind{Version: "v1", Kind: "Namespace"},
			Verbs:        []string{"get", "list"},
		}},
	}}}
}

func aggregatedServing() discovery.APIGroupDiscovery {
	v := discovery.APIVersionDiscovery{
		Version: group.Version, Freshness: discovery.DiscoveryFreshnessCurrent}
	for _, k := range kinds {
		gvk := metav1.GroupVersionKind(k.gvk())
		v.Resources = append(v.Resources, discovery.APIResourceDiscovery{
			Resource: k.Names.Plural, SingularResource: k.Names.Singular,
			Scope: discovery.ScopeNamespace, ResponseKind: &gvk, Verbs: verbs,
			ShortNames: k.Names.ShortNames, Categories: k.Names.Categories,
		})
	}
	return discovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: group.Group},
		Versions: []discovery.APIVersionDiscovery{v}}
}

// schemas returns Knative's schemas by name, each with the kind that it is of.
func schemas() map[string]any {
	all := map[string]any{}
	for _, k := range kinds {
		var s map[string]any
		_ = json.Unmarshal(k.Schema, &s) // kinds were read from the same text
		s["x-kubernetes-group-version-kind"] = []any{gvkOf(k)}
		all["dev.knative.serving.v1."+k.Names.Kind] = s
	}
	return all
}

func gvkOf(k *kind) map[string]any {
	return map[string]any{"group": group.Group, "version": group.Version, "kind": k.Names.Kind}
}

// operations returns the paths of the kinds with what clients look for in them: the kind, and that
// the server itself checks fields.
func operations(parameter func(name string) any) map[string]any {
	all, ok := map[string]any{}, map[string]any{"description": "OK"}
	for _, k := range kinds {
		op := func(action string, parameters ...any) map[string]any {
			return map[string]any{
				"parameters": parameters, "x-kubernetes-action": action,
				"x-kubernetes-group-version-kind": gvkOf(k),
				"responses":                       map[string]any{"200": ok},
			}
		}
		checks, dry := parameter("fieldValidation"), parameter("dryRun")
		path := "/apis/" + group.String() + "/namespaces/{namespace}/" + k.Names.Plural
		all[path] = map[string]any{"get": op("list"), "post": op("post", checks, dry)}
		all[path+"/{name}"] = map[string]any{"get": op("get"), "delete": op("delete"),
			"put": op("put", checks, dry), "patch": op("patch", checks, dry)}
	}
	return all
}

func openapiV3() any {
	return map[string]any{"openapi": "3.0.0",
		"info": map[string]any{"title": "Knative Serving", "version": group.Version},
		"paths": operations(func(name string) any {
			return map[string]any{"name": name, "in": "query",
				"schema": map[string]any{"type": "string"}}
		}),
		"components": map[string]any{"schemas": schemas()}}
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
		"info": map[string]any{"title": "Knative Serving", "version": group.Version},
		"paths": operations(func(name string) any {
			return map[string]any{"name": name, "in": "query", "type": "string"}
		}),
		"definitions": plain(schemas())})
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
