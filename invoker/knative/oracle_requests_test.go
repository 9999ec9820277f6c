//go:build oracle

package knative

import (
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strings"
)

// A request is one of a user's.
type request struct {
	sort, method, path, form, body string
	of                             string // the path of the object that a body is about
}

// A generator makes requests, good ones and bad ones.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) *generator { return &generator{rand.New(rand.NewPCG(seed, 21))} }

func one[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

// rarely reports true once in so many times.
func (g *generator) rarely(n int) bool { return g.IntN(n) == 0 }

var plurals = map[string]string{"services": "Service", "configurations": "Configuration",
	"routes": "Route", "revisions": "Revision"}

func (g *generator) next() request {
	resource := one(g, "services", "services", "configurations", "routes", "revisions")
	name := one(g, "a", "b", "c", "d-e", "f")
	all := objects + resource
	q := request{path: all + "/" + name, of: all + "/" + name}
	switch n := g.IntN(100); {
	case n < 40:
		q.sort, q.method, q.path = "create", http.MethodPost, all
		q.body = g.object(resource, name, false)
	case n < 50:
		q.sort, q.method = "get", http.MethodGet
	case n < 57:
		q.sort, q.method = "list", http.MethodGet
		q.path = all + one(g, "", "?labelSelector=l%3Da", "?labelSelector=l", "?labelSelector=l%3D",
			"?fieldSelector=metadata.name%3Da", "?labelSelector=%21l", "?limit=2",
			"?limit=2&continue=bad", "?limit=1&resourceVersion=1&continue="+theRest,
			"?limit=2&continue="+theRest, "?limit=1&resourceVersion=$VERSION",
			"?resourceVersion=0&resourceVersionMatch="+one(g, "Exact", "NotOlderThan"),
			"?resourceVersionMatch="+one(g, "Exact", "NotOlderThan", "x")+one(g, "", "&limit=2",
				"&labelSelector=l%3Da", "&continue="+theRest)+"&resourceVersion="+
				one(g, "", "x", "$VERSION", "$VERSION", "$VERSION"),
			"?labelSelector=l+in+(a,b)",
			"?labelSelector=%3D", "?fieldSelector=x")
	case n < 73:
		q.sort, q.method, q.body = "update", http.MethodPut, g.object(resource, name, true)
	case n < 88:
		q.sort, q.method = "patch", http.MethodPatch
		q.form, q.body = g.patch()
	default:
		q.sort, q.method, q.body = "delete", http.MethodDelete, one(g, "", "",
			`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Foreground"}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Orphan"}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"None"}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Orphan",
				"orphanDependents":true}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","orphanDependents":true}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"resourceVersion":"$VERSION"}}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"resourceVersion":"1"}}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"$UID"}}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"no"}}`)
		if g.rarely(8) {
			q.sort, q.path = "deletecollection", all+one(g, "?labelSelector=l%3Da", "?limit=1",
				"?fieldSelector=metadata.name%3Db", "?labelSelector=%3D")
		} else if q.body == "" {
			q.path += one(g, "", "?propagationPolicy=Foreground", "?propagationPolicy=Orphan",
				"?propagationPolicy=x", "?orphanDependents=false")
		}
	}
	if q.method != http.MethodGet && !strings.Contains(q.path, "?") && g.rarely(6) {
		q.path += one(g, "?fieldValidation=Strict", "?fieldValidation=Ignore", "?dryRun=All")
	}
	return q
}

// theRest is a token that is good: the rest of a list.
var theRest = base64.RawURLEncoding.EncodeToString([]byte(
	`{"v":"meta.k8s.io/v1","rv":-1,"start":"b\u0000"}`))

type doc = map[string]any

func (g *generator) object(resource, name string, update bool) string {
	meta := doc{"name": name}
	if g.rarely(3) {
		meta["labels"] = doc{"l": one(g, "a", "b", "", "c")}
	}
	if g.rarely(4) {
		meta["annotations"] = g.annotations()
	}
	if update {
		meta["resourceVersion"] = one(g, "$VERSION", "$VERSION", "$VERSION", "1")
		if g.rarely(10) {
			delete(meta, "resourceVersion")
		}
	}
	spec := doc{}
	switch resource {
	case "services":
		spec["template"] = g.template(name)
		if g.rarely(3) {
			spec["traffic"] = g.traffic()
		}
	case "configurations":
		spec["template"] = g.template(name)
	case "routes":
		spec["traffic"] = g.traffic()
	case "revisions":
		spec = g.revision()
	}
	if g.rarely(30) {
		spec["unknown"] = one(g, any("x"), any(doc{"a": 1}), any(5))
	}
	o := doc{"apiVersion": "serving.knative.dev/v1", "kind": plurals[resource],
		"metadata": meta, "spec": spec}
	if g.rarely(20) {
		o["status"] = doc{"observedGeneration": 7}
	}
	if g.rarely(40) {
		delete(o, "spec")
	}
	text, _ := json.Marshal(o)
	return string(text)
}

func (g *generator) annotations() doc {
	return one(g,
		doc{"note": "x"},
		doc{"autoscaling.knative.dev/min-scale": one(g, "0", "1", "-1", "x", "5")},
		doc{"autoscaling.knative.dev/max-scale": one(g, "0", "3", "-1", "x"),
			"autoscaling.knative.dev/min-scale": "2"},
		doc{"autoscaling.knative.dev/target": one(g, "10", "0.001", "x")},
		doc{"autoscaling.knative.dev/class": one(g, "kpa.autoscaling.knative.dev",
			"hpa.autoscaling.knative.dev", "other")},
		doc{"autoscaling.knative.dev/window": one(g, "60s", "1s", "2h", "x")},
		doc{"serving.knative.dev/rollout-duration": one(g, "10s", "x", "-1s")},
		doc{"serving.knative.dev/unknown": "x"},
		doc{"serving.knative.dev/creator": "bob"},
	)
}

func (g *generator) template(name string) doc {
	t := doc{"spec": g.revision()}
	meta := doc{}
	if g.rarely(5) {
		meta["name"] = one(g, name+"-one", name+"-two", "other-one", "Bad_", name)
	}
	if g.rarely(4) {
		meta["annotations"] = g.annotations()
	}
	if g.rarely(8) {
		meta["labels"] = one(g, doc{"l": "a"}, doc{"serving.knative.dev/service": "x"})
	}
	if len(meta) > 0 || g.rarely(6) {
		t["metadata"] = meta
	}
	if g.rarely(30) {
		delete(t, "spec")
	}
	return t
}

func (g *generator) revision() doc {
	r := doc{"containers": []any{g.container()}}
	add := func(n int, key string, value any) {
		if g.rarely(n) {
			r[key] = value
		}
	}
	add(4, "containerConcurrency", one(g, any(0), any(1), any(1000), any(-1), any(1001)))
	add(4, "timeoutSeconds", one(g, any(1), any(600), any(601), any(-1), any(0)))
	add(8, "responseStartTimeoutSeconds", one(g, 1, 300, 601, -5))
	add(8, "idleTimeoutSeconds", one(g, 1, 300, 601, -5))
	add(10, "serviceAccountName", one(g, "default", "bad@name", ""))
	add(20, "hostNetwork", true)
	add(20, "nodeSelector", doc{"a": "b"})
	add(20, "enableServiceLinks", one(g, true, false))
	add(20, "runtimeClassName", one(g, "runc", ""))
	add(20, "automountServiceAccountToken", one(g, true, false))
	add(25, "unknown", 1)
	add(25, "imagePullSecrets", []any{doc{"name": "x"}})
	add(8, "volumes", one(g,
		[]any{doc{"name": "v", "secret": doc{"secretName": "s"}}},
		[]any{doc{"name": "v", "configMap": doc{"name": "c"}}},
		[]any{doc{"name": "v", "emptyDir": doc{}}},
		[]any{doc{"name": "v", "hostPath": doc{"path": "/"}}},
		[]any{doc{"name": "V_"}},
		[]any{doc{"name": "v", "projected": doc{"sources": []any{
			doc{"secret": doc{"name": "s"}}}}}}))
	if g.rarely(25) {
		r["containers"] = one(g, []any{}, []any{g.container(), g.container()}, []any{doc{}})
	}
	return r
}

func (g *generator) container() doc {
	c := doc{"image": one(g, "example.com/one", "example.com/two:1", "three")}
	add := func(n int, key string, value any) {
		if g.rarely(n) {
			c[key] = value
		}
	}
	add(30, "image", one(g, "", "BAD image"))
	add(6, "name", one(g, "user-container", "x", "BAD_", "queue-proxy"))
	add(5, "ports", one(g,
		[]any{doc{"containerPort": 8080}}, []any{doc{"containerPort": 0}},
		[]any{doc{"containerPort": 70000}}, []any{doc{"name": "h2c", "containerPort": 81}},
		[]any{doc{"name": "bad", "containerPort": 81}}, []any{doc{"containerPort": 8012}},
		[]any{doc{"containerPort": 1}, doc{"containerPort": 2}},
		[]any{doc{"hostPort": 80}}, []any{doc{"protocol": "UDP", "containerPort": 9}}))
	add(4, "env", one(g,
		[]any{doc{"name": "A", "value": "b"}}, []any{doc{"name": "", "value": "b"}},
		[]any{doc{"name": "PORT", "value": "1"}},
		[]any{doc{"name": "A", "valueFrom": doc{"secretKeyRef": doc{"name": "s", "key": "k"}}}},
		[]any{doc{"name": "A", "valueFrom": doc{"fieldRef": doc{"fieldPath": "metadata.name"}}}}))
	add(5, "resources", one(g,
		doc{"limits": doc{"memory": "64Mi", "cpu": 1}},
		doc{"requests": doc{"memory": "64Mi"}, "limits": doc{"memory": "32Mi"}},
		doc{"limits": doc{"cpu": "100m"}},
		doc{"limits": doc{"memory": 1048576}}))
	probe := func() any {
		return one(g, doc{"httpGet": doc{"path": "/x"}}, doc{"tcpSocket": doc{}},
			doc{"httpGet": doc{"path": "/x", "port": 8080}, "periodSeconds": 5},
			doc{"exec": doc{"command": []any{"x"}}}, doc{"periodSeconds": -1},
			doc{"grpc": doc{"port": 9}}, doc{"httpGet": doc{"path": "/x", "scheme": "HTTPS"}},
			doc{"httpGet": doc{}, "tcpSocket": doc{}}, doc{"timeoutSeconds": 0},
			doc{"successThreshold": 0}, doc{"failureThreshold": -1})
	}
	add(6, "readinessProbe", probe())
	add(8, "livenessProbe", probe())
	add(15, "startupProbe", probe())
	add(8, "securityContext", one(g, doc{"runAsUser": 1000}, doc{"runAsUser": -1},
		doc{"privileged": true}, doc{"readOnlyRootFilesystem": true},
		doc{"capabilities": doc{"add": []any{"NET_ADMIN"}}}, doc{"runAsNonRoot": true}))
	add(10, "volumeMounts", one(g, []any{doc{"name": "v", "mountPath": "/v"}},
		[]any{doc{"name": "v", "mountPath": "v"}}, []any{doc{"name": "w", "mountPath": "/v"}},
		[]any{doc{"name": "v", "mountPath": "/v", "readOnly": true}}))
	add(10, "command", []any{"a", "b"})
	add(12, "imagePullPolicy", one(g, "Always", "IfNotPresent", "Bad"))
	add(20, "lifecycle", doc{"preStop": doc{}})
	add(20, "stdin", true)
	add(20, "terminationMessagePolicy", one(g, "File", "Bad"))
	add(20, "unknown", "x")
	return c
}

func (g *generator) traffic() any {
	return one(g,
		any([]any{doc{"configurationName": "a", "percent": 100}}),
		any([]any{doc{"latestRevision": true, "percent": 100}}),
		any([]any{doc{"revisionName": "a-00001", "percent": 100}}),
		any([]any{doc{"revisionName": "a-00001", "percent": 60},
			doc{"revisionName": "a-00002", "percent": 40, "tag": "two"}}),
		any([]any{doc{"revisionName": "a-00001", "percent": 60}}),
		any([]any{doc{"revisionName": "a-00001", "percent": 101}}),
		any([]any{doc{"revisionName": "a-00001", "percent": -1}}),
		any([]any{doc{"revisionName": "a-00001", "latestRevision": true, "percent": 100}}),
		any([]any{doc{"revisionName": "a-00001", "configurationName": "a", "percent": 100}}),
		any([]any{doc{"percent": 100}}),
		any([]any{doc{"latestRevision": false, "percent": 100}}),
		any([]any{doc{"revisionName": "A_", "percent": 100}}),
		any([]any{doc{"configurationName": "a", "percent": 100, "tag": "Bad_tag"}}),
		any([]any{doc{"configurationName": "a", "percent": 50, "tag": "t"},
			doc{"configurationName": "a", "percent": 50, "tag": "t"}}),
		any([]any{doc{"configurationName": "a", "percent": 100, "url": "http://x"}}),
		any([]any{}),
	)
}

func (g *generator) patch() (form, body string) {
	merge, steps := "application/merge-patch+json", "application/json-patch+json"
	c := one(g,
		[2]string{merge, `{"metadata":{"labels":{"l":"b"}}}`},
		[2]string{merge, `{"metadata":{"labels":{"l":null}}}`},
		[2]string{merge, `{"metadata":{"annotations":{"note":"y"}}}`},
		[2]string{merge, `{"metadata":{"annotations":{"serving.knative.dev/creator":"eve"}}}`},
		[2]string{merge, `{"metadata":{"resourceVersion":"1"}}`},
		[2]string{merge, `{"metadata":{"finalizers":["example.com/f"]}}`},
		[2]string{merge, `{"metadata":{"finalizers":["foregroundDeletion","example.com/f"]}}`},
		[2]string{merge, `{"metadata":{"finalizers":["orphan","foregroundDeletion"]}}`},
		[2]string{merge, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Secret",
			"name":"s","uid":"u","blockOwnerDeletion":true}]}}`},
		[2]string{merge, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Event",
			"name":"","uid":""}]}}`},
		[2]string{merge, `{"metadata":{"ownerReferences":null}}`},
		[2]string{merge, `{"metadata":{"finalizers":null}}`},
		[2]string{merge, `{"spec":{"template":{"spec":{"timeoutSeconds":10}}}}`},
		[2]string{merge, `{"spec":{"template":{"spec":{"timeoutSeconds":10000}}}}`},
		[2]string{merge, `{"spec":{"template":{"spec":{"containerConcurrency":null}}}}`},
		[2]string{merge, `{"spec":{"template":{"spec":{"containers":[{"image":"other"}]}}}}`},
		[2]string{merge, `{"spec":{"template":{"metadata":{"name":"a-new"}}}}`},
		[2]string{merge, `{"spec":{"traffic":[{"latestRevision":true,"percent":100}]}}`},
		[2]string{merge, `{"spec":{"unknown":1}}`},
		[2]string{merge, `{"spec":null}`},
		[2]string{merge, `{"status":{"observedGeneration":9}}`},
		[2]string{merge, `{}`},
		[2]string{steps, `[{"op":"add","path":"/metadata/labels","value":{"l":"c"}}]`},
		[2]string{steps, `[{"op":"replace","path":"/spec/template/spec/containers/0/image",
			"value":"yet"}]`},
		[2]string{steps, `[{"op":"remove","path":"/spec/template"}]`},
		[2]string{steps, `[{"op":"test","path":"/metadata/name","value":"nobody"}]`},
		[2]string{steps, `[{"op":"remove","path":"/nothing"}]`},
	)
	return c[0], c[1]
}
