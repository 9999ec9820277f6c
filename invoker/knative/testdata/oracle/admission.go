package main

import (
	"context"
	"encoding/json"

	"go.uber.org/zap"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/rest"
	"knative.dev/pkg/configmap"
	"knative.dev/pkg/injection"
	_ "knative.dev/pkg/injection/clients/namespacedkube/informers/core/v1/secret/fake"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/webhook"
	"knative.dev/pkg/webhook/resourcesemantics"
	"knative.dev/pkg/webhook/resourcesemantics/defaulting"
	"knative.dev/pkg/webhook/resourcesemantics/validation"
	apisconfig "knative.dev/serving/pkg/apis/config"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	asconfig "knative.dev/serving/pkg/autoscaler/config"
	extravalidation "knative.dev/serving/pkg/webhook"
)

// A knative admits objects as Knative's webhook does: it is that webhook's code, without the HTTP
// between. What that registers with a cluster, it registers with a client that keeps it to itself.
type knative struct{ defaults, checks webhook.AdmissionController }

const (
	defaultsName = "webhook.serving.knative.dev"
	checksName   = "validation.webhook.serving.knative.dev"
)

func newKnative(ctx context.Context) *knative {
	ctx = logging.WithLogger(ctx, zap.NewNop().Sugar())
	ctx = webhook.WithOptions(ctx, webhook.Options{ServiceName: "webhook", SecretName: "certs"})
	ctx, _ = injection.Fake.SetupInformers(ctx, &rest.Config{})
	of := v1.SchemeGroupVersion
	types := map[schema.GroupVersionKind]resourcesemantics.GenericCRD{
		of.WithKind("Revision"): &v1.Revision{}, of.WithKind("Configuration"): &v1.Configuration{},
		of.WithKind("Route"): &v1.Route{}, of.WithKind("Service"): &v1.Service{},
	}
	rules := apisconfig.NewStore(logging.FromContext(ctx))
	rules.WatchConfigs(configmap.NewStaticWatcher(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: apisconfig.DefaultsConfigName}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: apisconfig.FeaturesConfigName},
			Data: map[string]string{"kubernetes.podspec-runtimeclassname": "enabled"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: asconfig.ConfigName},
			Data: map[string]string{"allow-zero-initial-scale": "true"}},
	))
	return &knative{
		defaults: defaulting.NewAdmissionController(ctx, defaultsName, "/defaulting", types,
			rules.ToContext, false).Reconciler.(webhook.AdmissionController),
		checks: validation.NewAdmissionController(ctx, checksName, "/resource-validation", types,
			rules.ToContext, false, map[schema.GroupVersionKind]validation.Callback{
				of.WithKind("Service"): validation.NewCallback(extravalidation.ValidateService,
					webhook.Create, webhook.Update),
				of.WithKind("Configuration"): validation.NewCallback(
					extravalidation.ValidateConfiguration, webhook.Create, webhook.Update),
			}).Reconciler.(webhook.AdmissionController),
	}
}

// Handles implements admission.Interface.
func (k *knative) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Admit implements admission.MutationInterface.
func (k *knative) Admit(ctx context.Context, a admission.Attributes,
	o admission.ObjectInterfaces) error {
	request, err := requestOf(a)
	if request == nil || err != nil {
		return err
	}
	answer := k.defaults.Admit(ctx, request)
	if !answer.Allowed {
		return webhookerrors.ToStatusErr(defaultsName, answer.Result)
	}
	patch, err := jsonpatch.DecodePatch(answer.Patch)
	if err != nil {
		return err
	}
	changed, err := patch.Apply(request.Object.Raw)
	if err != nil {
		return err
	}
	object := a.GetObject().(*unstructured.Unstructured)
	if err := object.UnmarshalJSON(changed); err != nil {
		return err
	}
	o.GetObjectDefaulter().Default(object)
	return nil
}

// Validate implements admission.ValidationInterface.
func (k *knative) Validate(ctx context.Context, a admission.Attributes,
	_ admission.ObjectInterfaces) error {
	request, err := requestOf(a)
	if request == nil || err != nil {
		return err
	}
	answer := k.checks.Admit(ctx, request)
	for _, w := range answer.Warnings {
		warning.AddWarning(ctx, "", w)
	}
	if !answer.Allowed {
		return webhookerrors.ToStatusErr(checksName, answer.Result)
	}
	return nil
}

// requestOf returns what Knative's webhook is asked; nil: nothing, it is about another kind.
func requestOf(a admission.Attributes) (*admissionv1.AdmissionRequest, error) {
	if a.GetKind().Group != v1.SchemeGroupVersion.Group {
		return nil, nil
	}
	kind, resource := a.GetKind(), a.GetResource()
	r := &admissionv1.AdmissionRequest{
		Kind:        metav1.GroupVersionKind(kind),
		Resource:    metav1.GroupVersionResource(resource),
		SubResource: a.GetSubresource(), Name: a.GetName(), Namespace: a.GetNamespace(),
		Operation: admissionv1.Operation(a.GetOperation()),
		UserInfo:  authenticationv1.UserInfo{Username: a.GetUserInfo().GetName()},
	}
	var err error
	if r.Object, err = raw(a.GetObject()); err == nil {
		r.OldObject, err = raw(a.GetOldObject())
	}
	return r, err
}

func raw(o runtime.Object) (e runtime.RawExtension, err error) {
	if o != nil {
		e.Raw, err = json.Marshal(o)
	}
	return e, err
}
