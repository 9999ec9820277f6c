package knative

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/telemetry"
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
