package knative

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fastiov/fastiov/invoker/access"
)

// mostBody bounds the body of a request, as Kubernetes does.
const mostBody = 3 << 20

// mostSteps bounds a JSON patch, as Kubernetes does. What its steps copy is bounded as a body is:
// else thirty of them would double an object thirty times.
const mostSteps = 10_000

func init() { jsonpatch.AccumulatedCopySizeLimit = mostBody }

// A call is a request of a user to the API.
type call struct {
	*API
	w    http.ResponseWriter
	r    *http.Request
	user *access.Identity

	warns []string // what the user should know beside the answer
}

// api answers a request to the API.
func (a *API) api(w http.ResponseWriter, r *http.Request) {
	user, err := a.identify(r)
	if err == nil {
		err = a.admitted(user, r)
	}
	if err == nil && r.Method != http.MethodGet {
		if err = denied(a.cfg.Directory.Enter(user)); err == nil {
			defer user.Leave()
		}
	}
	c := &call{API: a, w: w, r: r, user: user}
	if err == nil {
		err = c.serve()
	}
	if err != nil {
		c.fail(err)
	}
}

// serve finds what the path names.
func (c *call) serve() error {
	path := strings.Trim(c.r.URL.Path, "/")
	of, rest := groupIn(path)
	if rest == "" || of.Group == "" && isNamespace(rest) {
		return c.discover(path)
	}
	parts := strings.Split(rest, "/")
	namespace := ""
	if len(parts) > 2 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	k := named(of, parts[0])
	switch {
	case k == nil || len(parts) > 3 || len(parts) == 3 && parts[2] != k.part():
		return notServed
	case namespace != "" && namespace != c.user.Namespace:
		return apierrors.NewForbidden(k.resource(), "", fmt.Errorf(
			"the key opens the namespace %q and not %q", c.user.Namespace, namespace))
	case k.Derived && c.r.Method != http.MethodGet:
		return apierrors.NewMethodNotSupported(k.resource(), strings.ToLower(c.r.Method))
	case len(parts) == 1:
		return c.collection(k, namespace)
	case namespace == "":
		return notServed
	case k == pods && len(parts) == 3:
		return c.logs(namespace, parts[1])
	}
	return c.one(k, namespace, parts[1], len(parts) == 3)
}

// part returns what each object of a kind has below its path.
func (k *kind) part() string {
	if k == pods {
		return "log"
	}
	return "status"
}

// groupIn returns the group whose API a path belongs to, and what follows; empty: nothing does.
func groupIn(path string) (of schema.GroupVersion, rest string) {
	for _, k := range kinds {
		if rest, is := strings.CutPrefix(path, pathOf(k.gv())+"/"); is {
			return k.gv(), rest
		}
	}
	return of, ""
}

// isNamespace reports whether a path of Kubernetes's own API is about namespaces themselves.
func isNamespace(rest string) bool {
	return strings.HasPrefix(rest+"/", "namespaces/") && strings.Count(rest, "/") < 2
}

func (c *call) collection(k *kind, namespace string) error {
	switch c.r.Method {
	case http.MethodGet:
		how, choice, err := c.listing(k)
		switch {
		case err != nil:
			return err
		case how.Watch:
			return c.watch(k, choice, how)
		}
		return c.list(k, choice, how)
	case http.MethodPost:
		if namespace == "" {
			return apierrors.NewBadRequest("the request names no namespace")
		}
		body, err := c.body()
		if err != nil {
			return err
		}
		o, w := k.make(), c.writer()
		strict := c.r.URL.Query().Get("fieldValidation")
		if err := w.decode(k, body, o, strict); err != nil {
			return undecodable(k, err)
		}
		if err := placed(k, o, namespace, o.GetName()); err != nil {
			return err
		}
		e, err := w.create(c.r.Context(), k, o)
		if err != nil {
			return err
		}
		return c.answer(http.StatusCreated, e)
	case http.MethodDelete:
		which, choice, err := c.listing(k)
		if err != nil {
			return err
		}
		how, err := c.deletion()
		if err != nil {
			return err
		}
		meta, page, err := c.page(k, choice, which)
		if err != nil {
			return err
		}
		for i, e := range page {
			if i > 0 && len(how.DryRun) == 0 { // the first is what the request was admitted for
				if err := c.admitted(c.user, c.r); err != nil {
					return err
				}
			}
			if _, _, err := c.delete(ref{k, e.name}, how); ignoreMissing(err) != nil {
				return err
			}
		}
		return c.listed(k, meta, page)
	}
	return apierrors.NewMethodNotSupported(k.resource(), c.r.Method)
}

func (c *call) one(k *kind, namespace, of string, status bool) error {
	query := c.r.URL.Query()
	old := c.world.get(k, namespace, of)
	missing := apierrors.NewNotFound(k.resource(), of)
	switch {
	case status && c.r.Method != http.MethodGet:
		return apierrors.NewMethodNotSupported(k.resource(), c.r.Method)
	case c.r.Method == http.MethodGet && old == nil:
		return missing
	case c.r.Method == http.MethodGet:
		return c.answer(http.StatusOK, old)
	case c.r.Method == http.MethodPatch:
		return c.patch(k, namespace, of)
	case c.r.Method == http.MethodDelete:
		return c.deleteOne(ref{k, name{namespace, of}})
	case c.r.Method != http.MethodPut:
		return apierrors.NewMethodNotSupported(k.resource(), c.r.Method)
	}
	body, err := c.body()
	if err != nil {
		return err
	}
	o, w := k.make(), c.writer()
	if err := w.decode(k, body, o, query.Get("fieldValidation")); err != nil {
		return undecodable(k, err)
	}
	if err := placed(k, o, namespace, of); err != nil {
		return err
	}
	if old == nil {
		return missing
	}
	if o.GetResourceVersion() == "" && !k.core() {
		return unversioned(k, of)
	}
	e, err := w.update(c.r.Context(), old, o)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, e)
}

// patch merges a patch into an object. One that is applied makes the object where there is none.
func (c *call) patch(k *kind, namespace, of string) error {
	form, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	patch, err := c.body()
	if err != nil {
		return err
	}
	var change func(doc []byte) ([]byte, error)
	switch form {
	case "application/merge-patch+json":
		change = func(doc []byte) ([]byte, error) { return jsonpatch.MergePatch(doc, patch) }
	case "application/apply-patch+yaml":
		if patch, err = yaml.YAMLToJSON(patch); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		change = func(doc []byte) ([]byte, error) { return jsonpatch.MergePatch(doc, patch) }
	case "application/strategic-merge-patch+json":
		if !k.core() {
			return unknownForm(k, of)
		}
		change = func(doc []byte) ([]byte, error) {
			return strategicpatch.StrategicMergePatch(doc, patch, k.make())
		}
	case "application/json-patch+json":
		steps, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if len(steps) > mostSteps {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
				"the patch has %d steps, and may have %d", len(steps), mostSteps))
		}
		change = func(doc []byte) ([]byte, error) {
			doc, err := steps.Apply(doc)
			return doc, inapplicable(err)
		}
	default:
		return unknownForm(k, of)
	}
	strict := c.r.URL.Query().Get("fieldValidation")
	return untilDone(func() error {
		old, w, o, code := c.world.get(k, namespace, of), c.writer(), k.make(), http.StatusOK
		doc := []byte("{}")
		switch {
		case old != nil:
			doc = old.body
		case form == "application/apply-patch+yaml":
			code = http.StatusCreated
		default:
			return apierrors.NewNotFound(k.resource(), of)
		}
		doc, err := change(doc)
		if known := (apierrors.APIStatus)(nil); errors.As(err, &known) {
			return err
		} else if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if err := w.decode(k, doc, o, strict); err != nil {
			return unpatchable(k, doc, err)
		}
		if err := placed(k, o, namespace, of); err != nil {
			return err
		}
		var e *entry
		if old == nil {
			e, err = w.create(c.r.Context(), k, o)
		} else {
			e, err = w.update(c.r.Context(), old, o)
		}
		if err != nil {
			return err
		}
		return c.answer(code, e)
	})
}

func (c *call) list(k *kind, choice choice, how metav1.ListOptions) error {
	meta, page, err := c.page(k, choice, how)
	if err != nil {
		return err
	}
	return c.listed(k, meta, page)
}

// listed answers with a page of a list.
func (c *call) listed(k *kind, meta metav1.ListMeta, page []*entry) error {
	if asTable(c.r) {
		return c.json(http.StatusOK, k.table(meta, page))
	}
	head, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(c.w, `{"kind":"%sList","apiVersion":"%s","metadata":%s,"items":[`,
		k.Names.Kind, k.gv(), head)
	for i, e := range page {
		if i > 0 {
			io.WriteString(c.w, ",")
		}
		c.w.Write(e.body)
	}
	_, err = io.WriteString(c.w, "]}\n")
	return ignore(err)
}

// ignore drops the error of an answer: the client that would be told of it has left.
func ignore(error) error { return nil }

func (c *call) writer() *writer {
	return &writer{
		world: c.world, user: c.user.Subject, most: c.cfg.Directory.Space,
		dry:  c.r.URL.Query().Get("dryRun") != "",
		warn: func(text string) { c.warns = append(c.warns, text) },
	}
}

func (c *call) body() ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, mostBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	case err != nil:
		return nil, apierrors.NewBadRequest(err.Error())
	case len(body) == 0: // whatever its form: a deletion says by its query then how it is meant
		return nil, nil
	}
	switch form, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); form {
	case "application/yaml":
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	case runtime.ContentTypeProtobuf:
		return unpacked(body)
	}
	return body, nil
}

// unpacked returns the JSON of an object in protobuf, as Kubernetes's clients send its own kinds.
func unpacked(body []byte) ([]byte, error) {
	var packed runtime.Unknown
	bare, is := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !is || packed.Unmarshal(bare) != nil {
		return nil, apierrors.NewBadRequest("the body is no object of Kubernetes in protobuf")
	}
	var o interface{ Unmarshal([]byte) error } = &metav1.DeleteOptions{}
	if packed.Kind != "DeleteOptions" {
		of, err := schema.ParseGroupVersion(packed.APIVersion)
		k := known(of.WithKind(packed.Kind))
		if err != nil || k == nil || !k.core() {
			return nil, apierrors.NewBadRequest(fmt.Sprintf(
				"no kind %.40q of %.40q comes in protobuf", packed.Kind, packed.APIVersion))
		}
		made := k.make()
		made.GetObjectKind().SetGroupVersionKind(k.gvk())
		o = made.(interface{ Unmarshal([]byte) error })
	}
	if err := o.Unmarshal(packed.Raw); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return json.Marshal(o)
}

// decode reads an object of JSON. Fields that there are not are an error, a warning or nothing.
func (w *writer) decode(k *kind, body []byte, o object, strict string) error {
	body, unknown := k.pruned(body)
	others, err := kjson.UnmarshalStrict(body, o)
	unknown = append(unknown, others...)
	if err != nil {
		return err
	}
	if len(unknown) > 0 && strict == "Strict" {
		return runtime.NewStrictDecodingError(unknown)
	}
	if strict != "Ignore" {
		for _, err := range unknown {
			w.warn(err.Error())
		}
	}
	if is := o.GetObjectKind().GroupVersionKind(); !is.Empty() && is != k.gvk() {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the object provided is a %s, and a %s is wanted", is, k.gvk()))
	}
	return nil
}

// placed checks that an object is what the path names.
func placed(k *kind, o object, namespace, of string) error {
	if o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	if o.GetName() == "" {
		o.SetName(of)
	}
	switch {
	case o.GetNamespace() != namespace:
		return apierrors.NewBadRequest("the namespace of the provided object does not match the " +
			"namespace sent on the request")
	case o.GetName() != of:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match "+
			"the name on the URL (%s)", o.GetName(), of))
	}
	return nil
}

// answer sends an object.
func (c *call) answer(code int, e *entry) error {
	if asTable(c.r) {
		return c.json(code, e.kind.table(
			metav1.ListMeta{ResourceVersion: e.object.GetResourceVersion()}, []*entry{e}))
	}
	c.begin(code)
	c.w.Write(e.body)
	return nil
}

// begin begins an answer of JSON, with the warnings that there are.
func (c *call) begin(code int) {
	warnIn(c.w.Header(), c.warns)
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(code)
}

func (c *call) json(code int, answer any) error {
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	c.begin(code)
	_, err = c.w.Write(append(body, '\n'))
	return ignore(err)
}

func (c *call) status(s metav1.Status) error {
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	return c.json(cmp.Or(int(s.Code), http.StatusOK), s)
}

// fail answers with why there is no other answer.
func (c *call) fail(err error) {
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known):
	case errors.Is(err, context.Canceled):
		return
	default:
		known = apierrors.NewInternalError(err)
	}
	_ = c.status(known.Status())
}

var notServed = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
	Message: "the server could not find the requested resource",
	Details: &metav1.StatusDetails{},
}}

// identify returns who sends a request: its key is the bearer's token or, as OpenWhisk's, basic.
func (a *API) identify(r *http.Request) (*access.Identity, error) {
	id, secret, basic := r.BasicAuth()
	if token, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); !basic && is {
		id, secret, _ = strings.Cut(token, ":")
	}
	user, err := a.cfg.Identify(r, access.Key{UUID: id, Secret: secret})
	return user, denied(err)
}

// denied returns why a key does not open, as Kubernetes says it; nil: it does.
func denied(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, access.ErrUnknown):
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure,
			Code: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized,
			Message: "Unauthorized: " + err.Error()}}
	}
	return apierrors.NewForbidden(schema.GroupResource{}, "", err)
}
