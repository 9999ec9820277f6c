package command

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// A loggedService is a Knative service whose log is shown: those of its pods, as the API has them.
type loggedService struct {
	name  string
	pods  string // the URL of its namespace's pods
	key   string
	mu    sync.Mutex
	out   io.Writer
	known map[string]bool // pods whose logs have been shown
	shows sync.WaitGroup
}

// openService finds the invoker of this machine, and the namespace that the key opens.
func openService(cmd *cobra.Command, name, stateDir, keyFrom string) (*loggedService, error) {
	served, err := readListen(cmd.Flag("run-dir").Value.String())
	if err != nil {
		return nil, err
	}
	key, err := keyOf(cmd.InOrStdin(), keyFrom, stateDir, served)
	if err != nil {
		return nil, err
	}
	s := &loggedService{name: name, key: key, out: cmd.OutOrStdout(), known: map[string]bool{}}
	at := "http://" + reachable(served[0]) + "/api/v1/namespaces"
	var all corev1.NamespaceList
	if err := s.get(cmd.Context(), at, &all); err != nil {
		return nil, err
	}
	if len(all.Items) == 0 {
		return nil, fmt.Errorf("the key opens no namespace")
	}
	s.pods = at + "/" + all.Items[0].Name + "/pods"
	return s, nil
}

// logs prints what the service's pods have written; follow: and what these and later ones write.
func (s *loggedService) logs(ctx context.Context, follow bool) error {
	query := url.Values{"labelSelector": {"serving.knative.dev/service=" + s.name}}
	var all corev1.PodList
	if err := s.get(ctx, s.pods+"?"+query.Encode(), &all); err != nil {
		return err
	}
	if len(all.Items) == 0 && !follow {
		return fmt.Errorf("there is no sandbox %q, and no service of that name has one;"+
			" with -f its next ones are waited for", s.name)
	}
	for i := range all.Items {
		s.show(ctx, &all.Items[i], follow)
	}
	defer s.shows.Wait()
	for version := all.ResourceVersion; follow && ctx.Err() == nil; {
		query.Set("watch", "true")
		query.Set("resourceVersion", version)
		answer, err := s.ask(ctx, s.pods+"?"+query.Encode())
		if err != nil {
			return err
		}
		version = s.await(ctx, answer)
	}
	return nil
}

// await shows the logs of the pods that a watch brings, and returns where the next watch begins.
func (s *loggedService) await(ctx context.Context, watch io.ReadCloser) (version string) {
	defer watch.Close()
	events := json.NewDecoder(watch)
	for {
		var e struct {
			Type   string
			Object corev1.Pod
		}
		if err := events.Decode(&e); err != nil {
			return version // a watch ends after a while
		}
		if e.Type == "ERROR" {
			version = "" // begin with those that there are
			continue
		}
		version = e.Object.ResourceVersion
		s.show(ctx, &e.Object, true)
	}
}

// show prints the log of a pod once it runs, until it has ended.
func (s *loggedService) show(ctx context.Context, pod *corev1.Pod, follow bool) {
	if pod.Status.Phase != corev1.PodRunning || s.known[pod.Name] {
		return
	}
	s.known[pod.Name] = true
	query := url.Values{"timestamps": {"true"}}
	if follow {
		query.Set("follow", "true")
	}
	s.shows.Go(func() {
		log, err := s.ask(ctx, s.pods+"/"+pod.Name+"/log?"+query.Encode())
		if err != nil {
			return // it has ended meanwhile
		}
		defer log.Close()
		lines := bufio.NewReader(log)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			at, text, _ := strings.Cut(line, " ")
			s.mu.Lock()
			fmt.Fprintf(s.out, "%-30s %s", at, text)
			s.mu.Unlock()
		}
	})
}

func (s *loggedService) get(ctx context.Context, at string, into any) error {
	answer, err := s.ask(ctx, at)
	if err != nil {
		return err
	}
	defer answer.Close()
	return json.NewDecoder(answer).Decode(into)
}

// ask returns the body of the answer to a GET.
func (s *loggedService) ask(ctx context.Context, at string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+s.key)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	var why struct{ Message string }
	_ = json.NewDecoder(io.LimitReader(answer.Body, 64<<10)).Decode(&why)
	return nil, fmt.Errorf("the invoker answers %s: %s", answer.Status, why.Message)
}
