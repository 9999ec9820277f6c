package knative

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	network "knative.dev/networking/pkg/config"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	listers "knative.dev/serving/pkg/client/listers/serving/v1"
	"knative.dev/serving/pkg/reconciler/route/config"
	urls "knative.dev/serving/pkg/reconciler/route/domains"
	"knative.dev/serving/pkg/reconciler/route/traffic"
)

// route says where a route's traffic goes. The road follows what its status says, also where a
// later spec cannot be met yet: then traffic goes on as before.
func (r *reconciler) route(ctx context.Context, e *entry, to *v1.Route) error {
	st := &to.Status
	st.InitializeConditions()
	st.ObservedGeneration = to.Generation
	ctx = config.ToContext(ctx, r.road.names)
	host, err := urls.DomainNameFromTemplate(ctx, to.ObjectMeta, to.Name)
	if err != nil {
		st.MarkUnknownTrafficError(err.Error())
		return r.report(e, to)
	}
	st.URL = r.road.at(urls.URL(urls.HTTPScheme, host))
	st.Address = &duckv1.Addressable{URL: st.URL}
	st.MarkTLSNotEnabled(v1.ExternalDomainTLSNotEnabledMessage)
	plan, err := traffic.BuildTrafficConfiguration(
		configurationLister{r.world}, revisionLister{r.world}, to)
	var bad traffic.TargetError
	if errors.As(err, &bad) {
		if owner, _ := ownerOf(to); owner != nil && r.get(configurations, to.Namespace,
			to.Name) == nil {
			// Its service is about to make that. A route that pins revisions is not told then.
			r.queue.AddAfter(ref{e.kind, e.name}, betweenLooks)
			return nil
		}
		bad.MarkBadTrafficTarget(st)
		return r.report(e, to)
	} else if err != nil {
		return err
	}
	// without a rollout: traffic goes to a new revision at once
	leads, err := plan.GetRevisionTrafficTargets(ctx, to, &traffic.Rollout{})
	if err != nil {
		return err
	}
	hosts := []string{host}
	for i := range leads {
		if leads[i].URL != nil {
			hosts = append(hosts, leads[i].URL.Host)
			leads[i].URL = r.road.at(leads[i].URL)
		}
	}
	st.MarkTrafficAssigned()
	if taken := r.road.claim(e.name, hosts); taken != "" {
		of, _, _ := strings.Cut(taken, ".")
		st.MarkServiceNotOwned(of)
		r.queue.AddAfter(ref{e.kind, e.name}, betweenLooks)
		return r.report(e, to)
	}
	st.Traffic = leads
	var ingress v1alpha1.IngressStatus // the road leads there as soon as this status is kept
	ingress.InitializeConditions()
	ingress.MarkNetworkConfigured()
	ingress.MarkLoadBalancerReady(nil, nil)
	st.PropagateIngressStatus(ingress)
	return r.report(e, to)
}

// label has a revision say which routes lead to it, as in Knative, and reports whether it did not.
// The newest that is ready counts as led to: its route is about to follow.
func (r *reconciler) label(v *v1.Revision) (changed bool) {
	r.mu.Lock()
	var by []string
	for route := range r.of[ref{revisions, name{v.Namespace, v.Name}}] {
		by = append(by, route.name)
	}
	r.mu.Unlock()
	slices.Sort(by)
	said, state := strings.Join(by, ","), v1.RoutingStateActive
	if said == "" {
		of := r.get(configurations, v.Namespace, v.Labels[serving.ConfigurationLabelKey])
		if of == nil || v.GetRoutingState() != v1.RoutingStateActive {
			return false
		}
		newest := of.object.(*v1.Configuration).Status.LatestReadyRevisionName
		if newest == "" || newest == v.Name || !settled(v) {
			return false
		}
		state = v1.RoutingStateReserve
	}
	if state == v.GetRoutingState() && said == v.Annotations[serving.RoutesAnnotationKey] {
		return false
	}
	v.SetRoutingState(state, time.Now())
	if said == "" {
		delete(v.Annotations, serving.RoutesAnnotationKey)
	} else {
		v.Annotations[serving.RoutesAnnotationKey] = said
	}
	return true
}

// namesBelow returns Knative's rules for host names, with that domain.
func namesBelow(domain string) (*config.Config, error) {
	rules, err := network.NewConfigFromMap(nil)
	if err != nil {
		return nil, err
	}
	return &config.Config{Network: rules, Features: config.FromContextOrDefaults(
		config.ToContext(context.Background(), &config.Config{})).Features,
		Domain: &config.Domain{Domains: map[string]config.DomainConfig{
			domain: {Selector: &config.LabelSelector{}, Type: config.DomainTypeWildcard},
		}}}, nil
}

// at returns a URL with the port that this machine serves it at.
func (r *road) at(u *apis.URL) *apis.URL {
	there, usual := *u, "80"
	if u.Scheme == "https" {
		usual = "443"
	}
	if r.port != "" && r.port != usual {
		there.Host += ":" + r.port
	}
	return &there
}

// The listers read the world for Knative's packages.
type (
	configurationLister struct{ *world }
	configurationsOf    struct {
		*world
		namespace string
	}
	revisionLister struct{ *world }
	revisionsOf    struct {
		*world
		namespace string
	}
)

func listed[T object](w *world, k *kind, namespace string, s labels.Selector) (all []T, _ error) {
	list, _ := w.list(k, namespace)
	for _, e := range list {
		if s.Matches(labels.Set(e.object.GetLabels())) {
			all = append(all, e.object.(T))
		}
	}
	return all, nil
}

func got[T object](w *world, k *kind, namespace, of string) (o T, _ error) {
	e := w.get(k, namespace, of)
	if e == nil {
		return o, apierrors.NewNotFound(k.resource(), of)
	}
	return e.object.(T), nil
}

func (l configurationLister) List(labels.Selector) ([]*v1.Configuration, error) {
	return nil, errors.ErrUnsupported
}

func (l configurationLister) Configurations(n string) listers.ConfigurationNamespaceLister {
	return configurationsOf{l.world, n}
}

func (l configurationsOf) List(s labels.Selector) ([]*v1.Configuration, error) {
	return listed[*v1.Configuration](l.world, configurations, l.namespace, s)
}

func (l configurationsOf) Get(of string) (*v1.Configuration, error) {
	return got[*v1.Configuration](l.world, configurations, l.namespace, of)
}

func (l revisionLister) List(labels.Selector) ([]*v1.Revision, error) {
	return nil, errors.ErrUnsupported
}

func (l revisionLister) Revisions(n string) listers.RevisionNamespaceLister {
	return revisionsOf{l.world, n}
}

func (l revisionsOf) List(s labels.Selector) ([]*v1.Revision, error) {
	return listed[*v1.Revision](l.world, revisions, l.namespace, s)
}

func (l revisionsOf) Get(of string) (*v1.Revision, error) {
	return got[*v1.Revision](l.world, revisions, l.namespace, of)
}
