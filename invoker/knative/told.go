package knative

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/coldstart"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/telemetry"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// answered takes in that the first byte of the program's answer is here. A cold start ends with it:
// what follows may take hours.
func (p *passage) answered(answer *http.Response) {
	now := time.Now()
	ended := &telemetry.Call{Ran: true, Took: now.Sub(p.begun)}
	if answer.StatusCode >= http.StatusInternalServerError {
		ended.Status = telemetry.ApplicationError
		ended.Why = fmt.Sprintf("it answered %d %s", answer.StatusCode,
			http.StatusText(answer.StatusCode)) // not its own words, which may be long
	}
	p.tell(ended, &node.RunReply{BeginNs: p.sent.UnixNano(), EndNs: now.UnixNano()}, now)
}

// failed takes in that no program has answered. A client that left says nothing about one.
func (p *passage) failed(err error) {
	if errors.Is(err, context.Canceled) {
		p.told = true
	}
	p.tell(&telemetry.Call{Status: statusOf(err), Why: err.Error()}, nil, time.Now())
}

// statusOf returns whose fault it is that a request was not answered.
func statusOf(err error) telemetry.Status {
	var refused *pool.Refused
	var start *pool.StartError
	if errors.As(err, &refused) {
		return telemetry.Refused
	}
	if !errors.As(err, &start) {
		return telemetry.DeveloperError
	}
	switch status.Code(start.Err) {
	case codes.ResourceExhausted, codes.Unavailable:
		return telemetry.Refused
	case codes.InvalidArgument:
		return telemetry.DeveloperError
	}
	return telemetry.InternalError
}

// tell counts the request once, and keeps the record of the start that it has waited for.
func (p *passage) tell(ended *telemetry.Call, run *node.RunReply, now time.Time) {
	if p.told {
		return
	}
	p.told = true
	ended.API, ended.Kind = telemetry.Knative, "knative"
	ended.Function = p.revision.Namespace + "/" + functionOf(p.revision)
	ended.How = p.placed.How
	if p.placed.Start != nil {
		ended.ID = store.NewID()
		ended.Cold = coldstart.Of(p.begun, p.placed, run, now)
		p.keep(ended)
	}
	p.telemetry.Ended(ended)
}

// functionOf returns the name that a revision's requests are counted by: its configuration's, or
// its own where its label, which users may write, names none.
func functionOf(v *v1.Revision) string {
	label := v.Labels[serving.ConfigurationLabelKey]
	if validation.IsDNS1123Label(label) != nil {
		return v.Name
	}
	return label
}
