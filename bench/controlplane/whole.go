package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// A whole is all that there is of a service that is ready: the objects that Knative's controllers
// make of it, and the statuses that they write. A server without controllers gets it from clients.
type whole struct {
	name     string // of the service that this is
	made     []part // beside the service
	statuses []part
}

// A part is an object, or a status, and the path that it goes to.
type part struct {
	path string
	body []byte
}

const allOf = "/apis/serving.knative.dev/v1/namespaces/guest/"

// wholeOf returns what there is of a service of that name, once it is ready.
func (s *server) wholeOf(ctx context.Context, name string) (*whole, error) {
	if _, err := s.createService(ctx, name); err != nil {
		return nil, err
	}
	w := &whole{name: name}
	for _, of := range []struct{ kind, name string }{
		{"services", name}, {"configurations", name}, {"revisions", name + "-00001"},
		{"routes", name},
	} {
		text, err := s.answered(ctx, http.StatusOK, http.MethodGet, allOf+of.kind+"/"+of.name, "",
			"")
		if err != nil {
			return nil, err
		}
		var o map[string]any
		if err := json.Unmarshal(text, &o); err != nil {
			return nil, err
		}
		status, err := json.Marshal(map[string]any{"status": o["status"]})
		if err != nil {
			return nil, err
		}
		w.statuses = append(w.statuses, part{of.kind + "/" + of.name + "/status", status})
		if of.kind == "services" {
			continue
		}
		delete(o, "status")
		delete(o["metadata"].(map[string]any), "resourceVersion")
		if text, err = json.Marshal(o); err != nil {
			return nil, err
		}
		w.made = append(w.made, part{of.kind, text})
	}
	return w, nil
}

// complete has clients write what there is of each service of a turn: every object and every status
// once, which is the least that controllers could do.
func (k *kube) complete(ctx context.Context, w *whole, turn int) error {
	var next atomic.Int64
	clients, ctx := errgroup.WithContext(ctx)
	for range creators {
		clients.Go(func() error {
			for n := int(next.Add(1)) - 1; n < ofTurn; n = int(next.Add(1)) - 1 {
				if err := k.completeOne(ctx, w, fmt.Sprintf("s-%d", turn*ofTurn+n)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return clients.Wait()
}

func (k *kube) completeOne(ctx context.Context, w *whole, name string) error {
	of := func(text []byte) string {
		return string(bytes.ReplaceAll(text, []byte(w.name), []byte(name)))
	}
	for _, p := range w.made {
		_, err := k.answered(ctx, http.StatusCreated, http.MethodPost, allOf+p.path,
			"application/json", of(p.body))
		if err != nil {
			return err
		}
	}
	for _, p := range w.statuses {
		_, err := k.answered(ctx, http.StatusOK, http.MethodPatch, allOf+of([]byte(p.path)),
			"application/merge-patch+json", of(p.body))
		if err != nil {
			return err
		}
	}
	return nil
}
