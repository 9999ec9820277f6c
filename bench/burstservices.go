package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// servicesOf are a burst's functions as Knative services. Their first sandbox starts with their
// first request.
type servicesOf struct {
	*Burst
	namespace string
	urls      map[string]string // by name
}

func (b *servicesOf) path(name string) string {
	return "/apis/serving.knative.dev/v1/namespaces/" + b.namespace + "/services" + name
}

// put creates a service, in the place of one that is left over, and waits until it has a URL.
func (b *servicesOf) put(ctx context.Context, name string, n int) error {
	if b.namespace == "" {
		var all []string
		if err := b.ask(ctx, http.MethodGet, "/api/v1/namespaces", nil, &all); err != nil {
			return err
		}
		if len(all) == 0 {
			return errors.New("the key is of no namespace; burst with a user's key")
		}
		b.namespace = all[0]
	}
	program := map[string]any{"image": b.Kind, "command": []string{"python3"},
		"args": []string{"-m", "http.server", "8080"}}
	if len(b.Images) > 0 {
		program = map[string]any{"image": b.Images[n%len(b.Images)]}
	}
	program["resources"] = map[string]any{
		"limits": map[string]string{"memory": fmt.Sprint(b.Memory, "Mi")}}
	body := map[string]any{
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]string{
				"autoscaling.knative.dev/initial-scale": "0"}},
			"spec": map[string]any{"containers": []any{program}},
		}},
	}
	err := b.ask(ctx, http.MethodPost, b.path(""), body, nil)
	var refused *httpError
	if errors.As(err, &refused) && refused.status == http.StatusConflict {
		if err = b.clear(ctx, name); err == nil {
			err = b.ask(ctx, http.MethodPost, b.path(""), body, nil)
		}
	}
	for err == nil && b.urls[name] == "" {
		if err = pause(ctx); err == nil {
			err = b.look(ctx, name)
		}
	}
	return err
}

// clear deletes a service with all that it owns, and returns when that is gone: else the next of
// its name meets a configuration that is not its own.
func (b *servicesOf) clear(ctx context.Context, name string) error {
	err := b.ask(ctx, http.MethodDelete, b.path("/"+name+"?propagationPolicy=Foreground"), nil,
		&json.RawMessage{})
	for err == nil {
		if err = pause(ctx); err == nil {
			err = b.ask(ctx, http.MethodGet, b.path("/"+name), nil, &json.RawMessage{})
		}
	}
	var refused *httpError
	if errors.As(err, &refused) && refused.status == http.StatusNotFound {
		return nil
	}
	return err
}

// pause waits for a moment, as long as ctx lasts.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(10 * time.Millisecond):
		return nil
	}
}

// look notes the URL of a service that is ready.
func (b *servicesOf) look(ctx context.Context, name string) error {
	var s struct {
		Status struct {
			URL        string
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := b.ask(ctx, http.MethodGet, b.path("/"+name), nil, &s); err != nil {
		return err
	}
	for _, c := range s.Status.Conditions {
		switch {
		case c.Type == "Ready" && c.Status == "True":
			b.urls[name] = s.Status.URL
		case c.Type == "Ready" && c.Status == "False":
			return fmt.Errorf("service %s: %s", name, c.Message)
		}
	}
	return nil
}

func (b *servicesOf) invoke(ctx context.Context, name string) (*Start, error) {
	to, err := url.Parse(b.urls[name])
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL, nil)
	if err != nil {
		return nil, err
	}
	req.Host = to.Host // its name leads here, or nowhere
	begin := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		return nil, &httpError{resp.StatusCode, string(bytes.TrimSpace(answer))}
	}
	var records []activation
	path := fmt.Sprintf("activations?docs=true&limit=1&name=%s&since=%d", name, begin.UnixMilli())
	if err := b.call(ctx, http.MethodGet, path, nil, &records); err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, errors.New("its start has no record")
	}
	return records[0].start()
}

func (b *servicesOf) remove(ctx context.Context, name string) error {
	return b.ask(ctx, http.MethodDelete, b.path("/"+name), nil, &json.RawMessage{})
}
