package openwhisk

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

// Metrics holds what is counted of requests that are refused. A nil *Metrics counts nothing.
type Metrics struct {
	throttled *prometheus.CounterVec
	denied    *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		throttled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fastiov_throttled_requests_total",
			Help: "Requests that were refused with 429 or 413, by the limit that they met.",
		}, []string{"limit"}),
		denied: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fastiov_denied_requests_total",
			Help: "Requests that were refused with 401 or 403: by no key that opens, or for what it does not open.",
		}, []string{"route", "code"}),
	}
	for _, limit := range Limits {
		m.throttled.WithLabelValues(limit)
	}
	for _, route := range Routes {
		for _, code := range DeniedCodes {
			m.denied.WithLabelValues(route, code)
		}
	}
	for _, c := range []prometheus.Collector{m.throttled, m.denied} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Limits lists the limits that requests are refused for.
var Limits = []string{
	access.CallsPerMinute, access.CallsAtOnce, access.FiresPerMinute, access.ChangesPerMinute,
	access.ReadsPerMinute, access.BytesAtOnce, access.BytesOfAll, "waiting", "size", "quota",
}

// Routes lists the doors that requests come by: the API, web actions, and the live page.
var Routes = []string{"api", "web", "page"}

// DeniedCodes lists the statuses of requests that are denied.
var DeniedCodes = []string{"401", "403"}

// refuse counts a request that was answered with an error.
func (m *Metrics) refuse(route string, err error) {
	if m == nil {
		return
	}
	if status := statusOf(err); status == http.StatusUnauthorized ||
		status == http.StatusForbidden {
		m.denied.WithLabelValues(route, strconv.Itoa(status)).Inc()
		return
	}
	var tooMany *access.TooMany
	var refusal *entity.Refusal
	var full *overfull
	switch {
	case errors.As(err, &full):
		m.throttled.WithLabelValues("quota").Inc()
	case errors.As(err, &tooMany):
		m.throttled.WithLabelValues(tooMany.Limit).Inc()
	case !errors.As(err, &refusal):
	case refusal.Status == http.StatusTooManyRequests:
		m.throttled.WithLabelValues("waiting").Inc()
	case refusal.Status == http.StatusRequestEntityTooLarge:
		m.throttled.WithLabelValues("size").Inc()
	}
}
