package knative

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/fastiov/fastiov/invoker/lasting"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// A wanted says which lines of a Pod's log are asked for.
type wanted struct {
	sidecar string // that writes them; empty: the program that serves
	follow  bool
	since   time.Time // zero: from the first that is kept
	last    int       // so many of them; negative: all
	most    int64     // bytes; 0: any number
	stamps  bool
}

// logs sends what a Pod's container has written, as far as its node has kept it.
func (c *call) logs(namespace, of string) error {
	e := c.world.get(pods, namespace, of)
	var p *pod
	if e != nil {
		p = c.mirror.behind(namespace, of)
	}
	if p == nil {
		return apierrors.NewNotFound(pods.resource(), of)
	}
	o := e.object.(*corev1.Pod)
	serving := servingIn(o)
	name := cmp.Or(c.r.URL.Query().Get("container"), serving)
	if !slices.ContainsFunc(o.Spec.Containers,
		func(of corev1.Container) bool { return of.Name == name }) {
		return apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name,
			of))
	}
	w, err := c.wanted()
	if name != serving {
		w.sidecar = name
	}
	switch {
	case err != nil:
		return apierrors.NewBadRequest(err.Error())
	case c.r.URL.Query().Get("previous") == "true":
		return apierrors.NewBadRequest(fmt.Sprintf(
			"previous terminated container %q in pod %q not found", name, of))
	case o.Status.Phase != corev1.PodRunning:
		return apierrors.NewBadRequest(fmt.Sprintf(
			"container %q in pod %q is waiting to start: ContainerCreating", name, of))
	}
	if w.follow {
		leave, err := c.mirror.reads.enter(namespace)
		if err != nil {
			return err
		}
		defer leave()
	}
	ctx, stop := context.WithTimeout(c.r.Context(), watchFor)
	defer stop()
	go func() { // a program may be silent for long
		look := time.NewTicker(bookmarkEvery)
		defer look.Stop()
		for {
			select {
			case <-look.C:
				if c.mayRead(namespace) {
					continue
				}
			case <-c.closed:
			case <-ctx.Done():
			}
			stop()
			return
		}
	}()
	if w.last >= 0 {
		if err := w.skip(ctx, p); err != nil {
			return unread(of, err)
		}
	}
	lines, err := p.client.Logs(ctx, &node.LogsRequest{Id: p.sandbox, Follow: w.follow})
	if err == nil {
		err = node.Begun(lines)
	}
	if err != nil {
		return unread(of, err)
	}
	answer := lasting.Begin(c.w, bookmarkEvery)
	defer answer.Limit()
	c.w.Header().Set("Content-Type", "text/plain")
	c.w.WriteHeader(http.StatusOK)
	for {
		got, err := lines.Recv()
		if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
			panic(http.ErrAbortHandler) // so its reader knows that this is not the log's end
		}
		if err != nil || !c.mayRead(namespace) {
			return nil
		}
		line := func() error {
			if got.Missed > 0 {
				fmt.Fprintf(c.w, "(%d lines came too fast and are missing here)\n", got.Missed)
			}
			if !w.write(c.w, got.Line) {
				return io.EOF
			}
			return nil
		}
		if w.follow {
			err = answer.Send(line)
		} else {
			answer.Limit()
			err = line()
		}
		if err != nil {
			return nil
		}
	}
}

// defaultContainer is the annotation by which kubectl finds the container that it asks for.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// servingIn returns the name of the container of a Pod that serves.
func servingIn(o *corev1.Pod) string { return o.Annotations[defaultContainer] }

// unread returns why a log cannot be read.
func unread(of string, err error) error {
	if status.Code(err) == codes.NotFound {
		return apierrors.NewNotFound(pods.resource(), of)
	}
	return apierrors.NewServiceUnavailable("the node does not hand out the log: " + err.Error())
}

// mayRead reports whether the caller's key opens the namespace still.
func (c *call) mayRead(namespace string) bool {
	user, err := c.identify(c.r)
	return err == nil && user.Namespace == namespace
}

func (c *call) wanted() (w wanted, err error) {
	query := c.r.URL.Query()
	number := func(name string, otherwise int64) int64 {
		text := query.Get(name)
		if text == "" {
			return otherwise
		}
		n, wrong := strconv.ParseInt(text, 10, 64)
		if wrong == nil && n < 0 {
			wrong = errors.New("it is less than 0")
		}
		if wrong != nil {
			err = fmt.Errorf("%s %.40q: %w", name, text, wrong)
		}
		return n
	}
	w = wanted{follow: query.Get("follow") == "true", stamps: query.Get("timestamps") == "true",
		last: int(number("tailLines", -1)), most: number("limitBytes", 0)}
	if seconds := number("sinceSeconds", 0); seconds > 0 {
		w.since = time.Now().Add(-time.Duration(seconds) * time.Second)
	}
	if text := query.Get("sinceTime"); text != "" && err == nil {
		w.since, err = time.Parse(time.RFC3339, text)
	}
	return w, err
}

// skip has only the last of the lines be wanted that there are now.
func (w *wanted) skip(ctx context.Context, p *pod) error {
	lines, err := p.client.Logs(ctx, &node.LogsRequest{Id: p.sandbox})
	if err != nil {
		return err
	}
	var times []int64
	for {
		got, err := lines.Recv()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if got.Line.GetSidecar() != w.sidecar {
			continue
		}
		if at := got.Line.GetTimeNs(); at >= w.since.UnixNano() || w.since.IsZero() {
			times = append(times, at)
		}
	}
	switch first := len(times) - w.last; {
	case len(times) == 0:
	case first == len(times):
		w.since = time.Unix(0, times[first-1]+1)
	case first > 0:
		w.since = time.Unix(0, times[first])
	}
	return nil
}

// write writes a line if it is wanted, and reports whether there may be more.
func (w *wanted) write(to io.Writer, line *node.LogLine) (more bool) {
	at := time.Unix(0, line.GetTimeNs())
	if line == nil || at.Before(w.since) || line.Sidecar != w.sidecar {
		return true
	}
	text := line.Text + "\n"
	if w.stamps {
		text = at.UTC().Format(time.RFC3339Nano) + " " + text
	}
	if w.most > 0 {
		text = text[:min(int64(len(text)), w.most)]
		if w.most -= int64(len(text)); w.most == 0 {
			_, _ = io.WriteString(to, text)
			return false
		}
	}
	_, err := io.WriteString(to, text)
	return err == nil
}

func cellsOfPod(o object) map[string]any {
	p := o.(*corev1.Pod)
	ready, restarts, phase := 0, int32(0), string(p.Status.Phase)
	for _, c := range p.Status.ContainerStatuses {
		if c.Ready {
			ready++
		}
		restarts += c.RestartCount
		if c.State.Waiting != nil {
			phase = c.State.Waiting.Reason
		}
	}
	if p.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	return map[string]any{"Ready": fmt.Sprintf("%d/%d", ready, len(p.Spec.Containers)),
		"Status": phase, "Restarts": restarts}
}

func fieldsOfPod(o object) fields.Set {
	p := o.(*corev1.Pod)
	return fields.Set{"status.phase": string(p.Status.Phase), "spec.nodeName": p.Spec.NodeName}
}

func cellsOfService(o object) map[string]any {
	s := o.(*corev1.Service)
	ports := make([]string, len(s.Spec.Ports))
	for i, p := range s.Spec.Ports {
		ports[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	}
	return map[string]any{"Cluster-IP": "<none>", "External-IP": s.Spec.ExternalName,
		"Port(s)": strings.Join(ports, ","), "Selector": "<none>"}
}

func cellsOfEvent(o object) map[string]any {
	e := o.(*corev1.Event)
	return map[string]any{
		"Last Seen":  duration.HumanDuration(time.Since(e.LastTimestamp.Time)),
		"First Seen": duration.HumanDuration(time.Since(e.FirstTimestamp.Time)),
		"Object":     strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name,
	}
}

func fieldsOfEvent(o object) fields.Set {
	e := o.(*corev1.Event)
	return fields.Set{
		"involvedObject.kind": e.InvolvedObject.Kind, "involvedObject.name": e.InvolvedObject.Name,
		"involvedObject.namespace":       e.InvolvedObject.Namespace,
		"involvedObject.uid":             string(e.InvolvedObject.UID),
		"involvedObject.apiVersion":      e.InvolvedObject.APIVersion,
		"involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
		"involvedObject.fieldPath":       e.InvolvedObject.FieldPath,
		"type":                           e.Type, "reason": e.Reason, "source": e.Source.Component,
	}
}
