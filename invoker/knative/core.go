package knative

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"
)

// setDefaults fills in what an object does not say: of Knative's by Knative's rules.
func setDefaults(ctx context.Context, o object) {
	switch o := o.(type) {
	case apis.Defaultable:
		o.SetDefaults(ctx)
	case *corev1.Secret:
		if o.Type == "" {
			o.Type = corev1.SecretTypeOpaque
		}
		for key, text := range o.StringData {
			if o.Data == nil {
				o.Data = map[string][]byte{}
			}
			o.Data[key] = []byte(text)
		}
		o.StringData = nil
	}
}

// checkCore returns what Kubernetes has against a ConfigMap or a Secret. No message has a value.
func checkCore(ctx context.Context, k *kind, o object) error {
	wrong := meta.ValidateObjectMetaAccessor(o, true, meta.NameIsDNSSubdomain,
		field.NewPath("metadata"))
	switch o := o.(type) {
	case *corev1.ConfigMap:
		was, _ := apis.GetBaseline(ctx).(*corev1.ConfigMap)
		wrong = append(wrong, wrongInConfigMap(o, was)...)
	case *corev1.Secret:
		was, _ := apis.GetBaseline(ctx).(*corev1.Secret)
		wrong = append(wrong, wrongInSecret(o, was)...)
	}
	if len(wrong) == 0 {
		return nil
	}
	return apierrors.NewInvalid(k.gvk().GroupKind(), o.GetName(), wrong)
}

func wrongInConfigMap(o, was *corev1.ConfigMap) (wrong field.ErrorList) {
	size := 0
	for key, text := range o.Data {
		wrong = append(wrong, wrongKey("data", key)...)
		if _, twice := o.BinaryData[key]; twice {
			wrong = append(wrong, field.Invalid(field.NewPath("data").Key(key), key,
				"duplicate of key present in binaryData"))
		}
		size += len(text)
	}
	for key, value := range o.BinaryData {
		wrong = append(wrong, wrongKey("binaryData", key)...)
		size += len(value)
	}
	if size > corev1.MaxSecretSize {
		wrong = append(wrong, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	if was == nil || !ptr.Deref(was.Immutable, false) {
		return wrong
	}
	return append(wrong, changed(o.Immutable, map[string]bool{
		"data":       equality.Semantic.DeepEqual(o.Data, was.Data),
		"binaryData": equality.Semantic.DeepEqual(o.BinaryData, was.BinaryData)})...)
}

func wrongInSecret(o, was *corev1.Secret) (wrong field.ErrorList) {
	size := 0
	for key, value := range o.Data {
		wrong = append(wrong, wrongKey("data", key)...)
		size += len(value)
	}
	if size > corev1.MaxSecretSize {
		wrong = append(wrong, field.TooLong(field.NewPath("data"), "", corev1.MaxSecretSize))
	}
	for _, key := range keysOf[o.Type] {
		if _, has := o.Data[key]; !has {
			wrong = append(wrong, field.Required(field.NewPath("data").Key(key), ""))
		}
	}
	if o.Type == corev1.SecretTypeBasicAuth && o.Data[corev1.BasicAuthUsernameKey] == nil &&
		o.Data[corev1.BasicAuthPasswordKey] == nil {
		wrong = append(wrong, field.Required(
			field.NewPath("data").Key(corev1.BasicAuthUsernameKey), ""))
	}
	for _, key := range []string{corev1.DockerConfigKey, corev1.DockerConfigJsonKey} {
		if slices.Contains(keysOf[o.Type], key) && !json.Valid(o.Data[key]) {
			wrong = append(wrong, field.Invalid(field.NewPath("data").Key(key),
				"<secret contents redacted>", "it is no JSON"))
		}
	}
	if was == nil {
		return wrong
	}
	if o.Type != was.Type {
		wrong = append(wrong, field.Invalid(field.NewPath("type"), o.Type, "field is immutable"))
	}
	if !ptr.Deref(was.Immutable, false) {
		return wrong
	}
	return append(wrong, changed(o.Immutable, map[string]bool{
		"data": equality.Semantic.DeepEqual(o.Data, was.Data)})...)
}

// keysOf lists what a secret of a type has to have.
var keysOf = map[corev1.SecretType][]string{
	corev1.SecretTypeDockercfg:        {corev1.DockerConfigKey},
	corev1.SecretTypeDockerConfigJson: {corev1.DockerConfigJsonKey},
	corev1.SecretTypeSSHAuth:          {corev1.SSHAuthPrivateKey},
	corev1.SecretTypeTLS:              {corev1.TLSCertKey, corev1.TLSPrivateKeyKey},
}

func wrongKey(of, key string) (wrong field.ErrorList) {
	for _, why := range validation.IsConfigMapKey(key) {
		wrong = append(wrong, field.Invalid(field.NewPath(of).Key(key), key, why))
	}
	return wrong
}

// changed returns what may not change of an object that was immutable: its parts, and that it is.
func changed(immutable *bool, same map[string]bool) (wrong field.ErrorList) {
	same["immutable"] = ptr.Deref(immutable, false)
	for _, name := range slices.Sorted(maps.Keys(same)) {
		if !same[name] {
			wrong = append(wrong, field.Forbidden(field.NewPath(name),
				"field is immutable when `immutable` is set"))
		}
	}
	return wrong
}

func cellsOfConfigMap(o object) map[string]any {
	c := o.(*corev1.ConfigMap)
	return map[string]any{"Data": len(c.Data) + len(c.BinaryData)}
}

func cellsOfSecret(o object) map[string]any {
	return map[string]any{"Data": len(o.(*corev1.Secret).Data)}
}
