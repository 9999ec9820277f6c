package knative

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/pool"
	node "github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/limits"
)

const (
	defaultMiB = 256
	mostMiB    = 1 << 20 // no node has so much; more would not be counted right
	mostCPU    = 1 << 20 // thousandths, likewise
)

func portOf(c *corev1.Container) int {
	if len(c.Ports) > 0 && c.Ports[0].ContainerPort != 0 {
		return int(c.Ports[0].ContainerPort)
	}
	return v1.DefaultUserPort
}

// groupOf names a revision to the pool. Another one of its name is another group.
func groupOf(v *v1.Revision) string {
	return "knative/" + v.Namespace + "/" + v.Name + "/" + string(v.UID)
}

// memoryOf returns how many MiB a sandbox of a container gets, at most mostMiB.
func memoryOf(c *corev1.Container) int {
	for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		if m := list.Memory(); !m.IsZero() {
			bytes := min(max(m.Value(), 1), mostMiB<<20)
			return int((bytes + 1<<20 - 1) >> 20)
		}
	}
	return defaultMiB
}

// programsOf returns how many MiB a revision's containers get.
func programsOf(v *v1.Revision) (all int) {
	for i := range v.Spec.Containers {
		all += memoryOf(&v.Spec.Containers[i])
	}
	return min(all, mostMiB)
}

// sizeOf returns how many MiB a sandbox of a revision gets.
func sizeOf(v *v1.Revision) int { return programsOf(v) + limits.SidecarMiB*len(sidecarsOf(v)) }

// cpusOf returns, in thousandths, the CPUs that a revision's containers request, and the limit of
// all, which there is where each has one.
func cpusOf(v *v1.Revision) (request, limit uint32) {
	bounded := true
	for _, c := range v.Spec.Containers {
		request += uint32(min(max(c.Resources.Requests.Cpu().MilliValue(), 0), mostCPU))
		most := uint32(min(max(c.Resources.Limits.Cpu().MilliValue(), 0), mostCPU))
		bounded = bounded && most > 0
		limit += most
	}
	if !bounded {
		limit = 0
	}
	return min(request, mostCPU), min(limit, mostCPU)
}

// sidecarsOf returns the containers of a revision beside the one that serves.
func sidecarsOf(v *v1.Revision) (all []*corev1.Container) {
	if len(v.Spec.Containers) == 1 {
		return nil
	}
	serving := v.Spec.GetContainer().Name
	for i := range v.Spec.Containers {
		if c := &v.Spec.Containers[i]; c.Name != serving {
			all = append(all, c)
		}
	}
	return all
}

// demand returns what the pool is asked for, for a request to a revision.
func (r *road) demand(v *v1.Revision) pool.Demand {
	c := v.Spec.GetContainer()
	d := pool.Demand{
		Namespace: v.Namespace, Group: groupOf(v),
		Image: c.Image, MemoryMiB: sizeOf(v), Concurrency: int(v.Spec.GetContainerConcurrency()),
	}
	if d.Concurrency == 0 {
		d.Concurrency = pool.Endless
	}
	if s := v.Spec.TimeoutSeconds; s != nil && *s > 0 {
		d.Wait = time.Duration(*s) * time.Second
	}
	_, most, _ := autoscaling.MaxScaleAnnotation.Get(v.Annotations)
	d.Max, _ = strconv.Atoi(most) // Knative has checked it
	d.Scaled = true
	if probed(c) {
		d.PauseAfter = -1
	}
	d.Start = func() (*node.StartRequest, error) { return r.startOf(v) }
	d.Ready = func(reply *node.StartReply) error {
		if n := len(c.VolumeMounts); int(reply.Mounts) < n {
			return fmt.Errorf("its node gave the program %d of %d mounts: the agent there is of a "+
				"former version", reply.Mounts, n)
		}
		if n := len(v.Spec.Containers) - 1; int(reply.Sidecars) < n {
			return fmt.Errorf("its node started %d of %d sidecars: the agent there is of a former "+
				"version", reply.Sidecars, n)
		}
		return nil
	}
	return d
}

// initialOf returns how many sandboxes show that a revision is good.
func initialOf(v *v1.Revision) int {
	if _, initial, said := autoscaling.InitialScaleAnnotation.Get(v.Annotations); said {
		n, _ := strconv.Atoi(initial) // Knative has checked it
		return n
	}
	return 1
}

// startOf returns the request that starts a sandbox of a revision, or what is lacking for it.
func (r *road) startOf(v *v1.Revision) (*node.StartRequest, error) {
	c := v.Spec.GetContainer()
	s := &node.StartRequest{
		Namespace: v.Namespace, Protocol: "http", Port: uint32(portOf(c)), Probe: "tcp:",
	}
	if class := v.Spec.RuntimeClassName; class != nil {
		s.Handler = *class
	}
	switch p := c.ReadinessProbe; {
	case p == nil:
	case p.HTTPGet != nil:
		s.Probe = p.HTTPGet.Path
	case p.Exec != nil:
		s.ProbeCommand = p.Exec.Command
	}
	s.CpuRequest, s.CpuLimit = cpusOf(v)
	platform := map[string]string{"K_REVISION": v.Name,
		"K_CONFIGURATION": v.Labels[serving.ConfigurationLabelKey],
		"K_SERVICE":       v.Labels[serving.ServiceLabelKey]}
	p := &parcel{road: r, revision: v, namespace: v.Namespace}
	for _, of := range sidecarsOf(v) {
		side, err := p.give(of, platform)
		if err != nil {
			return nil, fmt.Errorf("the container %s: %w", of.Name, err)
		}
		s.Sidecars = append(s.Sidecars, side)
	}
	platform["PORT"] = strconv.Itoa(portOf(c))
	own, err := p.give(c, platform)
	if err != nil {
		return nil, err
	}
	s.Image, s.Env, s.Command, s.Args = own.Image, own.Env, own.Command, own.Args
	s.Dir, s.User, s.Mounts = own.Dir, own.User, own.Mounts
	return s, nil
}

// refuses returns why a revision cannot be run here, though Knative allows it; empty: it can.
func (r *road) refuses(v *v1.Revision) string {
	c := v.Spec.GetContainer()
	if len(v.Spec.InitContainers) > 0 {
		return "no container is run here before the others; do its work in one of these"
	}
	if why := notGiven(v); why != "" {
		return why
	}
	for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
		if p != nil && p.GRPC != nil {
			return "a probe by gRPC is not made here; use httpGet, tcpSocket or exec"
		}
	}
	for _, c := range v.Spec.Containers {
		for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			if list.Memory().Sign() < 0 {
				return "no container has less than no memory; correct resources"
			}
		}
	}
	owner, err := r.directory.Owner(v.Namespace)
	if err != nil {
		return err.Error()
	}
	if most := owner.Limits.MaxActionMemory; most > 0 && sizeOf(v) > most {
		return fmt.Sprintf("the revision asks for %d MiB of memory, and the namespace may give "+
			"at most %d; lower resources.limits.memory", sizeOf(v), most)
	}
	return ""
}
