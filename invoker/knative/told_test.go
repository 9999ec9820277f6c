package knative

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/telemetry"
	node "github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// A start that a request waits for has a record with its stages, a trace with the record's id, and
// is counted as one of this API; the next request is counted as warm.
func TestAColdStartIsExplained(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", annotated(described("hello", "example.com/hello"),
		"autoscaling.knative.dev/initial-scale", "0"))
	h.ready("hello", "True")
	for range 2 {
		if code, said := h.curl("hello.ann.localhost", "/"); code != 200 {
			t.Fatalf("%d %s", code, said)
		}
	}
	if len(h.kept) != 1 {
		t.Fatalf("%d records, want one", len(h.kept))
	}
	c := h.kept[0]
	if c.API != telemetry.Knative || c.Function != "ann/hello" || c.Status != telemetry.Success ||
		len(c.ID) != 32 {
		t.Errorf("the record is of %+v", c)
	}
	r := c.Cold
	if !r.Answered || r.Driver != "fake" || r.Stages[timeline.VMM] < 0.9 ||
		r.Stages[timeline.FirstByte] <= 0 || r.EndToEnd < r.Stages[timeline.VMM] {
		t.Errorf("the start is %+v", r)
	}
	spans := h.spans.Ended()
	if len(spans) != 1+len(r.Spans) || spans[0].SpanContext().TraceID().String() != c.ID {
		t.Errorf("%d spans of trace %s, want %d of %s", len(spans),
			spans[0].SpanContext().TraceID(), 1+len(r.Spans), c.ID)
	}
	for series, want := range map[string]uint64{
		"fastiov_cold_start_seconds knative":                1,
		"fastiov_activation_seconds knative ann/hello cold": 1,
		"fastiov_activation_seconds knative ann/hello warm": 1,
	} {
		if n := h.counted(series); n != want {
			t.Errorf("%s: %d, want %d", series, n, want)
		}
	}
}

// counted returns how many times a histogram has whose name and first labels are these.
func (h *house) counted(series string) (n uint64) {
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			name := family.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			if strings.HasPrefix(name, series) {
				n += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return n
}

// A start that fails is counted by whose fault it is; a program's error is the program's.
func TestWhatFailsIsCounted(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", annotated(described("hello", "example.com/broken"),
		"autoscaling.knative.dev/initial-scale", "0"))
	h.ready("hello", "True")
	if code, said := h.curl("hello.ann.localhost", "/"); code != 502 {
		t.Errorf("%d %s", code, said)
	}
	if len(h.kept) > 0 {
		t.Errorf("a record of a start that there was not: %+v", h.kept[0])
	}
	if n := h.ended("whisk internal error"); n != 1 {
		t.Errorf("%v are counted, want one", n)
	}
}

func (h *house) ended(status string) (n float64) {
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			for _, l := range m.Label {
				if family.GetName() == "fastiov_activations_total" && l.GetValue() == status {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// A program's words are not kept, and what it may send before its answer has a bound.
func TestAProgramThatTalks(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", annotated(described("hello", "example.com/hello"),
		"autoscaling.knative.dev/initial-scale", "0"))
	h.ready("hello", "True")
	if code, said := h.curl("hello.ann.localhost", "/talks"); code != 500 {
		t.Errorf("%d %s", code, said)
	}
	if len(h.kept) != 1 || h.kept[0].Why != "it answered 500 Internal Server Error" {
		t.Errorf("the record is %+v", h.kept)
	}
	if code, said := h.curl("hello.ann.localhost", "/headed"); code != 502 {
		t.Errorf("%d %s", code, said)
	}
}

// A label names the function only where it could be a configuration's name.
func TestALabelThatIsNoName(t *testing.T) {
	for label, want := range map[string]string{
		"hello": "hello", "": "hello-00001", "A_b": "hello-00001",
		strings.Repeat("x", 64): "hello-00001",
	} {
		v := &v1.Revision{ObjectMeta: metav1.ObjectMeta{Name: "hello-00001",
			Labels: map[string]string{serving.ConfigurationLabelKey: label}}}
		if got := functionOf(v); got != want {
			t.Errorf("%q: %s", label, got)
		}
	}
}

// Each way in which no program answers has its code, its party in the counts, and its place in the
// revision's conditions: what may go better later, or a reason why it will not.
func TestWhoseFaultItIs(t *testing.T) {
	start := func(code codes.Code, words string) error {
		return &pool.StartError{Sandbox: "s", Err: status.Error(code, words)}
	}
	const failed = "ContainerFailed"
	for _, c := range []struct {
		err    error
		code   int
		whose  telemetry.Status
		passes bool
		reason string
	}{
		{&pool.Refused{Why: "no room"}, 503, telemetry.Refused, true, failed},
		{&pool.Refused{Why: "too many", TooMany: true}, 429, telemetry.Refused, true, failed},
		{start(codes.ResourceExhausted, "full"), 503, telemetry.Refused, true, failed},
		{start(codes.Unavailable, "away"), 502, telemetry.Refused, true, failed},
		{start(codes.Aborted, "ends"), 502, telemetry.InternalError, true, failed},
		{start(codes.InvalidArgument, "no such image"), 503, telemetry.DeveloperError, false,
			v1.ReasonContainerMissing},
		{start(codes.NotFound, "the image x is nowhere"), 502, telemetry.InternalError, false,
			v1.ReasonContainerMissing},
		{start(codes.Internal, "it said: no image"), 502, telemetry.InternalError, false, failed},
		{fmt.Errorf("late: %w", errTimeout), 504, telemetry.DeveloperError, false, failed},
		{&access.TooMany{}, 429, telemetry.DeveloperError, false, failed},
		{errors.New("cut off"), 502, telemetry.DeveloperError, false, failed},
		{fmt.Errorf("it left: %w", context.Canceled), 502, telemetry.DeveloperError, false, failed},
	} {
		w := httptest.NewRecorder()
		fail(w, c.err)
		if w.Code != c.code || statusOf(c.err) != c.whose || mayPass(c.err) != c.passes ||
			reason(c.err) != c.reason {
			t.Errorf("%v: %d, %v, %v, %s", c.err, w.Code, statusOf(c.err), mayPass(c.err),
				reason(c.err))
		}
	}
}

// A node of a former version that does not give a program all is found out, and used for none.
func TestAFormerNodeGivesLess(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	v := &v1.Revision{}
	v.Spec.Containers = []corev1.Container{
		{Name: "a", Ports: []corev1.ContainerPort{{ContainerPort: 9000}},
			VolumeMounts: []corev1.VolumeMount{{Name: "x"}, {Name: "y"}}}, {Name: "side"}}
	for _, c := range []struct {
		mounts, sidecars uint32
		want             string
	}{
		{2, 1, ""}, {3, 2, ""},
		{1, 1, "1 of 2 mounts: the agent there is of a former version"},
		{2, 0, "0 of 1 sidecars: the agent there is of a former version"},
	} {
		err := h.api.road.demand(v).Ready(&node.StartReply{Mounts: c.mounts, Sidecars: c.sidecars})
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d mounts and %d sidecars: %v", c.mounts, c.sidecars, err)
		}
	}
}
