package openwhisk

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// trace hands on the cold start that an activation waited for, as a trace whose id is the activation's. It says whether it did.
func (a *API) trace(r *activation.Record) bool {
	cold := r.Cold
	if a.cfg.Tracer == nil || cold == nil || !cold.Answered {
		return false
	}
	return timeline.Trace(context.Background(), a.cfg.Tracer, r.ID, cold.Spans, cold.Begin, cold.End,
		attribute.String("function", r.Path), attribute.String("kind", r.Kind), attribute.String("status", r.Response.Status.String()),
		attribute.String("sandbox", cold.Sandbox), attribute.String("driver", cold.Driver), attribute.String("vf", cold.VF),
		attribute.String("netpath", cold.NetPath), attribute.String("fastiov", cold.FastIOV), attribute.Float64("coverage", cold.Coverage))
}
