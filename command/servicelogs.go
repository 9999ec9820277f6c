package command

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

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
	errs  io.Writer
	known map[string]bool // pods whose logs have been shown
	shows sync.WaitGroup
	why   error // why the first of them is not shown that is not
}

// errNoPod says that a pod is gone, and its log with it.
var errNoPod = errors.New("there is no such pod")

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
	s := &loggedService{name: name, key: key, out: cmd.OutOrStdout(),
		errs: cmd.ErrOrStderr(), known: map[string]bool{}}
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
	ctx, cancel := context.WithCancel(ctx)
	defer s.shows.Wait()
	defer cancel()
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
	if !follow {
		s.shows.Wait()
		return s.why
	}
	silent := false
	for version := all.ResourceVersion; ctx.Err() == nil; {
		query.Set("watch", "true")
		query.Set("resourceVersion", version)
		answer, err := s.ask(ctx, s.pods+"?"+query.Encode())
		switch {
		case err == nil:
			version, silent = s.await(ctx, answer), false
			continue
		case errors.As(err, new(refusedKey)):
			return err
		}
		if !silent && ctx.Err() == nil {
			fmt.Fprintf(s.errs, "no new sandboxes are shown until the invoker answers: %v\n", err)
		}
		version, silent = "", true // another invoker begins anew
		select {
		case <-time.After(betweenAsks):
		case <-ctx.Done():
		}
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

// betweenAsks is the time after which a log that broke off is asked for again.
const betweenAsks = time.Second

// show prints the log of a pod that runs; follow: until the pod is gone, also where its node's
// agent ends and another goes on, and where its program crashes, so that it has no log for a while.
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
		at := s.pods + "/" + pod.Name
		for {
			err := s.print(ctx, at+"/log?"+query.Encode(), query)
			switch {
			case ctx.Err() != nil || !follow && errors.Is(err, errNoPod),
				follow && errors.As(err, new(refusedKey)): // the watch is refused, too
				return
			case !follow:
				s.mu.Lock()
				s.why = cmp.Or(s.why, err)
				s.mu.Unlock()
				return
			}
			select {
			case <-time.After(betweenAsks):
			case <-ctx.Done():
			}
			if errors.Is(s.get(ctx, at, &corev1.Pod{}), errNoPod) {
				return
			}
		}
	})
}

// print prints a log, and notes in the query from when on the next one is to be.
func (s *loggedService) print(ctx context.Context, at string, query url.Values) error {
	log, err := s.ask(ctx, at)
	if err != nil {
		return err
	}
	defer log.Close()
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		at, text, _ := strings.Cut(line, " ")
		if when, err := time.Parse(time.RFC3339Nano, at); err == nil {
			query.Set("sinceTime", when.Add(1).Format(time.RFC3339Nano))
		}
		s.mu.Lock()
		fmt.Fprintf(s.out, "%-30s %s", at, text)
		s.mu.Unlock()
	}
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
	if answer.StatusCode == http.StatusNotFound {
		return nil, errNoPod
	}
	var why struct{ Message string }
	_ = json.NewDecoder(io.LimitReader(answer.Body, 64<<10)).Decode(&why)
	err = fmt.Errorf("the invoker answers %s: %s", answer.Status, why.Message)
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		err = refusedKey{err}
	}
	return nil, err
}

// A refusedKey is an answer that will be the same next time.
type refusedKey struct{ error }
