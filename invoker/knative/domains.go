package knative

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	"knative.dev/serving/pkg/apis/serving/v1beta1"
)

// Domains holds the names of their own that services have: which namespace has a name, which route
// it leads to, and by which Secret's certificate it is shown. A name is the namespace's that had it
// first, until that gives it up.
type domains struct {
	below []string // names are below one of these; *: any name
	own   string   // the domain of services, below which no name is mapped

	// By which a listener shows names that have no certificate of their own; nil: there is none.
	others atomic.Pointer[func(*tls.ClientHelloInfo) (*tls.Certificate, error)]

	mu     sync.RWMutex
	owners map[string]string       // namespaces, by name
	leads  map[string]name         // routes, by name
	shown  map[string]name         // Secrets, by name
	to     map[ref]map[string]bool // names, by the routes and Secrets that they are for
	pairs  map[name]keyPair        // of Secrets
}

func newDomains(own string, below []string) *domains {
	return &domains{below: below, own: own, owners: map[string]string{}, leads: map[string]name{},
		shown: map[string]name{}, to: map[ref]map[string]bool{}, pairs: map[name]keyPair{}}
}

// follow takes in a DomainMapping as it is now, whose status says whether it has its name, and what
// a Secret has.
func (d *domains) follow(e *event) {
	switch o := e.entry.object.(type) {
	case *v1beta1.DomainMapping:
		d.mu.Lock()
		defer d.mu.Unlock()
		d.followMapping(e, o)
	case *corev1.Secret:
		d.mu.Lock()
		defer d.mu.Unlock()
		if delete(d.pairs, e.entry.name); e.what != "DELETED" {
			d.pairs[e.entry.name] = pairOf(o)
		}
	}
}

func (d *domains) followMapping(e *event, o *v1beta1.DomainMapping) {
	if e.before != nil {
		for _, was := range needsOf(e.before.object.(*v1beta1.DomainMapping)) {
			delete(d.to[was], o.Name)
			if len(d.to[was]) == 0 {
				delete(d.to, was)
			}
		}
	}
	mine := d.owners[o.Name] == o.Namespace
	if mine {
		delete(d.leads, o.Name)
		delete(d.shown, o.Name)
	}
	if e.what == "DELETED" {
		if mine {
			delete(d.owners, o.Name)
		}
		return
	}
	for _, of := range needsOf(o) {
		if d.to[of] == nil {
			d.to[of] = map[string]bool{}
		}
		d.to[of][o.Name] = true
	}
	if !o.Status.GetCondition(v1beta1.DomainMappingConditionDomainClaimed).IsTrue() ||
		!d.has(o.Namespace, o.Name) {
		return
	}
	if o.Spec.TLS != nil {
		d.shown[o.Name] = secretFor(o)
	}
	if o.Status.GetCondition(apis.ConditionReady).IsTrue() {
		d.leads[o.Name] = routeFor(o)
	}
}

// routeFor returns the route that a mapping is for: a service's has the service's name.
func routeFor(o *v1beta1.DomainMapping) name { return name{o.Namespace, o.Spec.Ref.Name} }

// secretFor returns the Secret whose certificate a mapping is to be shown by.
func secretFor(o *v1beta1.DomainMapping) name { return name{o.Namespace, o.Spec.TLS.SecretName} }

// needsOf returns what a mapping cannot be without.
func needsOf(o *v1beta1.DomainMapping) []ref {
	all := []ref{{routes, routeFor(o)}}
	if o.Spec.TLS != nil {
		all = append(all, ref{secrets, secretFor(o)})
	}
	return all
}

// has gives a name to a namespace unless another has it, or nobody may. The caller holds the lock.
func (d *domains) has(namespace, of string) bool {
	if d.owners[of] == "" && d.refuses(of) == "" {
		d.owners[of] = namespace
	}
	return d.owners[of] == namespace
}

// claim gives a name to a namespace unless another has it.
func (d *domains) claim(namespace, of string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.has(namespace, of)
}

// leave takes a name from a namespace.
func (d *domains) leave(namespace, of string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owners[of] == namespace {
		delete(d.owners, of)
	}
}

// refuses returns why nobody may have a name; empty: somebody may.
func (d *domains) refuses(of string) string {
	if _, err := netip.ParseAddr(of); err == nil {
		return "an address is no name"
	}
	if strings.HasSuffix(of, ".") {
		return "a name without a dot at its end is wanted"
	}
	if of == d.own || strings.HasSuffix(of, "."+d.own) {
		return fmt.Sprintf("names at %s are those of services and their tags", d.own)
	}
	for _, domain := range d.below {
		if domain == "*" || of == domain || strings.HasSuffix(of, "."+domain) {
			return ""
		}
	}
	if len(d.below) == 0 {
		return "the operator has opened no domain for names of services (--mapped-domains)"
	}
	return "the operator has opened other domains for names of services: " +
		strings.Join(d.below, ", ")
}

// behind returns the route that a name leads to; is: the name is a namespace's.
func (d *domains) behind(of string) (route name, is bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.leads[of], d.owners[of] != ""
}

// names returns the names that are for a route, or are shown by a Secret's certificate.
func (d *domains) names(to ref) (all []string) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for of := range d.to[to] {
		all = append(all, of)
	}
	return all
}

// mapping has a name lead to a route, as its DomainMapping says.
func (r *reconciler) mapping(e *entry, o *v1beta1.DomainMapping) error {
	st := &o.Status
	st.InitializeConditions()
	st.ObservedGeneration = o.Generation
	scheme := "http"
	if o.Spec.TLS != nil {
		scheme = "https"
	}
	st.URL = r.road.at(&apis.URL{Scheme: scheme, Host: o.Name})
	st.Address = &duckv1.Addressable{URL: st.URL}
	r.certified(o)
	if why := r.road.domains.refuses(o.Name); why != "" {
		st.MarkDomainClaimFailed(why)
		return r.report(e, o)
	}
	if !r.road.domains.claim(o.Namespace, o.Name) {
		st.MarkDomainClaimNotOwned()
		r.queue.AddAfter(ref{e.kind, e.name}, betweenLooks)
		return r.report(e, o)
	}
	if r.get(e.kind, o.Namespace, o.Name) == nil { // it was deleted before it had the name
		r.road.domains.leave(o.Namespace, o.Name)
		return nil
	}
	st.MarkDomainClaimed()
	if why := r.unresolved(o); why != "" {
		st.MarkReferenceNotResolved(why)
		return r.report(e, o)
	}
	st.MarkReferenceResolved()
	var ingress v1alpha1.IngressStatus // the road leads there as soon as this status is seen
	ingress.InitializeConditions()
	ingress.MarkNetworkConfigured()
	ingress.MarkLoadBalancerReady(nil, nil)
	st.PropagateIngressStatus(ingress)
	return r.report(e, o)
}

// unresolved returns why there is nothing that a mapping could lead to; empty: there is.
func (r *reconciler) unresolved(o *v1beta1.DomainMapping) string {
	to := o.Spec.Ref
	if to.Namespace != "" && to.Namespace != o.Namespace {
		return fmt.Sprintf("the reference must be in the namespace %q of its DomainMapping",
			o.Namespace)
	}
	known := false
	for _, k := range []*kind{kindOf(routes.Group, "Service"), routes, hosts} {
		known = known || k.Names.Kind == to.Kind && k.gv().String() == to.APIVersion
	}
	if !known {
		return fmt.Sprintf("a %s of %s is no Service or Route of %s", to.Kind, to.APIVersion,
			routes.gv())
	}
	e := r.get(routes, o.Namespace, to.Name)
	if e == nil || e.object.(*v1.Route).Status.URL == nil {
		return fmt.Sprintf("%s %q not found", strings.ToLower(to.Kind), to.Name)
	}
	return ""
}
