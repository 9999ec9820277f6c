package controlplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// A kube is an API of Kubernetes's form, as its clients reach it.
type kube struct {
	client    *http.Client
	base, key string
}

const servicesOf = "/apis/serving.knative.dev/v1/namespaces/guest/services"

// newClient returns a client of servers that this process has started on loopback: it looks at no
// certificate.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64,
		DisableCompression: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

// send sends a request, with a body of that form if there is one.
func (k *kube) send(ctx context.Context, method, path, form, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, k.base+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+k.key)
	if form != "" {
		r.Header.Set("Content-Type", form)
	}
	return k.client.Do(r)
}

// answered returns the body of the answer to a request, which has to have that status.
func (k *kube) answered(ctx context.Context, code int, method, path, form, body string) ([]byte,
	error) {
	answer, err := k.send(ctx, method, path, form, body)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != code {
		err = fmt.Errorf("%s %s is answered %s: %.200s", method, path, answer.Status, text)
	}
	return text, err
}

// create creates a service whose sandboxes start with its first request, and returns its
// resourceVersion.
func (k *kube) create(ctx context.Context, name string) (string, error) {
	made, err := k.answered(ctx, http.StatusCreated, http.MethodPost, servicesOf,
		"application/json", fmt.Sprintf(`{"apiVersion":"serving.knative.dev/v1","kind":"Service",`+
			`"metadata":{"name":%q},"spec":{"template":{"metadata":{"annotations":{`+
			`"autoscaling.knative.dev/initial-scale":"0"}},"spec":{"containers":[`+
			`{"image":"example.com/program"}]}}}}`, name))
	return strconv.FormatUint(numberAfter(made, versioned), 10), err
}

func (k *kube) patch(ctx context.Context, service, body string) error {
	_, err := k.answered(ctx, http.StatusOK, http.MethodPatch, servicesOf+"/"+service,
		"application/merge-patch+json", body)
	return err
}

// revision returns the newest resourceVersion.
func (k *kube) revision(ctx context.Context) (string, error) {
	first, err := k.answered(ctx, http.StatusOK, http.MethodGet, servicesOf+"?limit=1", "", "")
	if err != nil {
		return "", err
	}
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	err = json.Unmarshal(first, &list)
	return list.Metadata.ResourceVersion, err
}

var (
	versioned = []byte(`"resourceVersion":"`)
	patched   = []byte(`"patched":"`)
)

// numberAfter returns the number behind the first such word of a text; 0: there is none. Whoever
// reads thousands of events a second leaves the CPU to those who are measured.
func numberAfter(text, word []byte) (number uint64) {
	at := bytes.Index(text, word)
	if at < 0 {
		return 0
	}
	for _, digit := range text[at+len(word):] {
		if digit < '0' || digit > '9' {
			break
		}
		number = 10*number + uint64(digit-'0')
	}
	return number
}
