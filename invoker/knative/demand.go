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

// demand returns what the pool is asked for, for a request to a revision.
func (r *road) demand(v *v1.Revision) pool.Demand {
	c := v.Spec.GetContainer()
	d := pool.Demand{
		Namespace: v.Namespace, Group: groupOf(v),
		Image: c.Image, MemoryMiB: memoryOf(c), Concurrency: int(v.Spec.GetContainerConcurrency()),
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
		Image: c.Image, Namespace: v.Namespace, Protocol: "http", Port: uint32(portOf(c)),
		Probe: "tcp:", Dir: c.WorkingDir,
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
	s.CpuRequest = uint32(min(max(c.Resources.Requests.Cpu().MilliValue(), 0), mostCPU))
	s.CpuLimit = uint32(min(max(c.Resources.Limits.Cpu().MilliValue(), 0), mostCPU))
	if sc := c.SecurityContext; sc != nil && sc.RunAsUser != nil {
		s.User = strconv.FormatInt(*sc.RunAsUser, 10)
		if sc.RunAsGroup != nil {
			s.User += ":" + strconv.FormatInt(*sc.RunAsGroup, 10)
		}
	}
	return s, r.give(v, s, map[string]string{
		"PORT": strconv.Itoa(portOf(c)), "K_REVISION": v.Name,
		"K_CONFIGURATION": v.Labels[serving.ConfigurationLabelKey],
		"K_SERVICE":       v.Labels[serving.ServiceLabelKey],
	})
}

// refuses returns why a revision cannot be run here, though Knative allows it; empty: it can.
func (r *road) refuses(v *v1.Revision) string {
	c := v.Spec.GetContainer()
	if len(v.Spec.Containers) > 1 || len(v.Spec.InitContainers) > 0 {
		return "a revision of several containers is not run here; give it one"
	}
	if why := notGiven(v); why != "" {
		return why
	}
	for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
		if p != nil && p.GRPC != nil {
			return "a probe by gRPC is not made here; use httpGet, tcpSocket or exec"
		}
	}
	for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		if list.Memory().Sign() < 0 {
			return "no container has less than no memory; correct resources"
		}
	}
	owner, err := r.directory.Owner(v.Namespace)
	if err != nil {
		return err.Error()
	}
	if most := owner.Limits.MaxActionMemory; most > 0 && memoryOf(c) > most {
		return fmt.Sprintf("the container asks for %d MiB of memory, and the namespace may give "+
			"at most %d; lower resources.limits.memory", memoryOf(c), most)
	}
	return ""
}
