package knative

import (
	"container/list"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"
	"knative.dev/pkg/kmeta"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// A mirror shows what there is as Kubernetes would: sandboxes as Pods, routes as Services, and what
// happens to all of them as Events. Nobody writes these objects, and no store has them: they are of
// this process. It hears of news at once, and shows them in their order a moment later.
type mirror struct {
	world     *world
	directory *access.Directory
	log       *slog.Logger
	wake      chan struct{} // of one: there are news
	done      sync.WaitGroup

	mu     sync.Mutex
	news   []func()                // what is to be shown
	newest map[string]pool.Sandbox // of those in news, by id
	pods   map[string]*pod         // by sandbox
	named  map[name]*pod           // the same, by name
	reads  *readers                // of logs
	said   map[said]*list.Element  // the Event that says so
	told   map[fold]*list.List     // of each fold the Events, the newest last
	fallen map[string][]*entry     // by group: Pods that wait for another sandbox
}

// A pod is a sandbox that is shown.
type pod struct {
	ref
	sandbox string
	client  node.NodeClient
}

// mostFollowers bounds who follows logs of one namespace; mostShown, what a Pod shows of its spec.
const (
	mostFollowers = 64
	mostShown     = 32 << 10
)

func newMirror(d *access.Directory, log *slog.Logger) *mirror {
	return &mirror{directory: d, log: log, wake: make(chan struct{}, 1), pods: map[string]*pod{},
		newest: map[string]pool.Sandbox{}, named: map[name]*pod{},
		reads: newReaders("followed logs", mostFollowers),
		said:  map[said]*list.Element{}, told: map[fold]*list.List{},
		fallen: map[string][]*entry{}}
}

// run shows what is new until ctx ends.
func (m *mirror) run(ctx context.Context, w *world) {
	m.world = w
	m.done.Go(func() {
		old := time.NewTicker(time.Minute)
		defer old.Stop()
		for {
			select {
			case <-m.wake:
			case now := <-old.C:
				m.forgetOld(now)
			case <-ctx.Done():
				return
			}
			m.mu.Lock()
			news := m.news
			m.news = nil
			m.mu.Unlock()
			for _, show := range news {
				if ctx.Err() != nil {
					return
				}
				show()
			}
		}
	})
}

// later has something shown soon. Its caller may hold any lock.
func (m *mirror) later(show func()) {
	m.mu.Lock()
	m.news = append(m.news, show)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// sandbox takes in news of a sandbox. Where they come faster than they are shown, only the newest
// are.
func (m *mirror) sandbox(s pool.Sandbox) {
	of := strings.Split(s.Group, "/")
	if len(of) != 4 || of[0] != "knative" { // as groupOf names it
		return
	}
	m.mu.Lock()
	_, queued := m.newest[s.ID]
	m.newest[s.ID] = s
	m.mu.Unlock()
	if !queued {
		m.later(func() {
			m.mu.Lock()
			newest := m.newest[s.ID]
			delete(m.newest, s.ID)
			m.mu.Unlock()
			m.showPod(newest, of[2], types.UID(of[3]))
		})
	}
}

// follow takes in an event of the world. What a process finds when it begins is not news.
func (m *mirror) follow(e *event) {
	if e.entry.kind.Derived {
		return
	}
	m.later(func() {
		if e.entry.kind == routes {
			m.showHosts(e)
		}
		if v, is := e.entry.object.(*v1.Revision); is && e.what == "DELETED" {
			for lost := m.rise(groupOf(v)); lost != nil; lost = m.rise(groupOf(v)) {
				m.world.hide(lost)
			}
		}
		if e.entry.revision > m.world.floor {
			m.tell(e)
		}
	})
}

// showPod shows a sandbox of a revision.
func (m *mirror) showPod(s pool.Sandbox, revision string, uid types.UID) {
	old := m.pods[s.ID]
	switch {
	case old == nil:
		e := m.world.get(revisions, s.Namespace, revision)
		if e == nil || e.object.GetUID() != uid {
			return
		}
		if s.Gone && s.Why != nil { // too soon for a Pod
			m.say(e, corev1.EventTypeWarning, "Failed", s.Why.Error())
		}
		if s.Gone {
			return
		}
		o := podOf(s, e.object.(*v1.Revision))
		before := m.rise(s.Group)
		if before != nil {
			o = again(before.object.(*corev1.Pod), s.Node)
		}
		m.remember(s, &pod{ref{pods, name{o.Namespace, o.Name}}, s.ID, s.Client})
		if shown := m.show(o, before); shown != nil && before == nil {
			m.say(shown, corev1.EventTypeNormal, "Scheduled", fmt.Sprintf(
				"Successfully assigned %s/%s to %s", o.Namespace, o.Name, s.Node))
		}
		if !s.Ready {
			return
		}
	}
	was := m.world.get(pods, s.Namespace, m.pods[s.ID].name.name)
	if was == nil {
		return
	}
	o := was.object.DeepCopyObject().(*corev1.Pod)
	switch {
	case s.Gone && s.Why != nil:
		m.say(was, corev1.EventTypeWarning, "Failed", s.Why.Error())
		if o.Status.Phase == corev1.PodRunning {
			m.remember(s, nil)
			m.fall(s.Group, m.show(crashed(o, s.Why), was))
			return
		}
	case s.Gone:
		m.say(was, corev1.EventTypeNormal, "Killing",
			"Stopping container "+servingIn(o))
	case s.Ready:
		if !runs(o) {
			m.say(was, corev1.EventTypeNormal, "Started",
				"Started container "+servingIn(o))
		}
		if s.Rests {
			m.say(was, corev1.EventTypeWarning, "Unhealthy", "Readiness probe failed")
		}
		running(o, s)
		m.show(o, was)
		return
	}
	m.remember(s, nil)
	o.DeletionTimestamp, o.DeletionGracePeriodSeconds = ptr.To(now()), ptr.To[int64](0)
	if last := m.show(o, was); last != nil {
		m.world.hide(last)
	}
}

// crashedFor bounds how long a Pod whose sandbox has crashed waits for the next, which
// starts after a rest.
const crashedFor = 2 * pool.MostRest

// fall has a Pod whose sandbox has crashed wait for the revision's next: that is its container,
// started again.
func (m *mirror) fall(group string, e *entry) {
	if e == nil {
		return
	}
	m.fallen[group] = append(m.fallen[group], e)
	time.AfterFunc(crashedFor, func() {
		m.later(func() {
			if slices.Contains(m.fallen[group], e) {
				m.lose(group, e)
				m.world.hide(e)
			}
		})
	})
}

// rise takes a Pod of a group whose sandbox has crashed, or nil: there is none.
func (m *mirror) rise(group string) *entry {
	if len(m.fallen[group]) == 0 {
		return nil
	}
	e := m.fallen[group][0]
	m.lose(group, e)
	return e
}

// lose has a Pod wait no longer for a sandbox.
func (m *mirror) lose(group string, e *entry) {
	left := slices.DeleteFunc(m.fallen[group], func(of *entry) bool { return of == e })
	if m.fallen[group] = left; len(left) == 0 {
		delete(m.fallen, group)
	}
}

// remember keeps which sandbox a pod shows; nil: none any more.
func (m *mirror) remember(s pool.Sandbox, p *pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p == nil {
		delete(m.named, m.pods[s.ID].name)
		delete(m.pods, s.ID)
	} else {
		m.pods[s.ID], m.named[p.name] = p, p
	}
}

// behind returns the sandbox that a pod shows, or nil.
func (m *mirror) behind(namespace, of string) *pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.named[name{namespace, of}]
}

func now() metav1.Time { return metav1.NewTime(time.Now().UTC().Truncate(time.Second)) }

// podOf returns the Pod of a sandbox that is being started.
func podOf(s pool.Sandbox, v *v1.Revision) *corev1.Pod {
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: v.Name + "-deployment-" + s.ID, Namespace: v.Namespace,
			OwnerReferences: []metav1.OwnerReference{*kmeta.NewControllerRef(v)},
			Labels: kmeta.UnionMaps(v.Labels, map[string]string{"app": v.Name,
				serving.RevisionLabelKey: v.Name, serving.RevisionUID: string(v.UID)}),
			Annotations: map[string]string{
				defaultContainer: v.Spec.GetContainer().Name},
		},
		Spec: shown(&v.Spec.PodSpec),
		Status: corev1.PodStatus{Phase: corev1.PodPending, StartTime: ptr.To(now()),
			QOSClass: corev1.PodQOSBurstable},
	}
	o.Spec.NodeName, o.Spec.RestartPolicy = s.Node, corev1.RestartPolicyAlways
	for _, c := range o.Spec.Containers {
		o.Status.ContainerStatuses = append(o.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Started: ptr.To(false), State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}})
	}
	o.Status.Conditions = conditions(false)
	return o
}

// crashed returns a Pod whose container has ended and is to be started again.
func crashed(o *corev1.Pod, why error) *corev1.Pod {
	words := cut(why.Error())
	o.Status.Conditions = conditions(false)
	for i := range o.Status.ContainerStatuses {
		c := &o.Status.ContainerStatuses[i]
		ended := &corev1.ContainerStateTerminated{Reason: "Error", Message: words,
			ContainerID: c.ContainerID, ExitCode: 1, FinishedAt: now()}
		if c.State.Running != nil {
			ended.StartedAt = c.State.Running.StartedAt
		}
		c.Ready, c.Started, c.ContainerID = false, ptr.To(false), ""
		c.LastTerminationState = corev1.ContainerState{Terminated: ended}
		c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason: "CrashLoopBackOff", Message: words}}
	}
	return o
}

// again returns a crashed Pod whose container is being started once more, at that node.
func again(o *corev1.Pod, node string) *corev1.Pod {
	o = o.DeepCopy()
	o.Spec.NodeName = node
	for i := range o.Status.ContainerStatuses {
		c := &o.Status.ContainerStatuses[i]
		c.RestartCount++
		c.State = corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	}
	return o
}

// runs reports whether a Pod says that its container runs.
func runs(o *corev1.Pod) bool {
	all := o.Status.ContainerStatuses
	return len(all) > 0 && all[0].State.Running != nil
}

// shown returns what a Pod shows of a revision's spec: of a very large one, what it is about.
func shown(spec *corev1.PodSpec) (s corev1.PodSpec) {
	if spec.Size() <= mostShown {
		return *spec.DeepCopy()
	}
	for _, c := range spec.Containers {
		s.Containers = append(s.Containers,
			corev1.Container{Name: c.Name, Image: c.Image, Ports: c.Ports, Resources: c.Resources})
	}
	return s
}

// running has a Pod say that its container runs.
func running(o *corev1.Pod, s pool.Sandbox) {
	o.Status.Phase, o.Status.Conditions = corev1.PodRunning, conditions(!s.Rests)
	address, _, _ := strings.Cut(s.Started.GetAddress(), "/")
	if address != "" {
		o.Status.PodIP, o.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	}
	for i := range o.Status.ContainerStatuses {
		c := &o.Status.ContainerStatuses[i]
		c.Ready, c.Started, c.ContainerID = !s.Rests, ptr.To(true), "fastiov://"+s.ID
		if c.State.Running != nil {
			continue
		}
		c.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now()}}
	}
}

func conditions(ready bool) (all []corev1.PodCondition) {
	for _, c := range []struct {
		of corev1.PodConditionType
		is bool
	}{{corev1.PodReadyToStartContainers, ready}, {corev1.PodInitialized, true},
		{corev1.PodReady, ready}, {corev1.ContainersReady, ready}, {corev1.PodScheduled, true}} {
		condition := corev1.PodCondition{Type: c.of, Status: corev1.ConditionFalse,
			LastTransitionTime: now()}
		if c.is {
			condition.Status = corev1.ConditionTrue
		} else {
			condition.Reason = "ContainersNotReady"
		}
		all = append(all, condition)
	}
	return all
}

// showHosts shows a route's names as Services: its own, and one for each tag.
func (m *mirror) showHosts(e *event) {
	want := hostsOf(e.entry)
	if e.what == "DELETED" {
		want = nil
	}
	uid := e.entry.object.GetUID()
	shown := func(of string) (is *entry, its bool) {
		if is = m.world.get(hosts, e.entry.name.namespace, of); is == nil {
			return nil, false
		}
		owner, _ := ownerOf(is.object)
		return is, owner != nil && owner.UID == uid
	}
	for of := range hostsOf(e.before) {
		if is, its := shown(of); its && want[of] == nil {
			m.world.hide(is)
		}
	}
	for of, o := range want {
		is, its := shown(of)
		if is == nil {
			m.show(o, nil)
			continue
		} else if !its {
			continue
		}
		was := is.object.(*corev1.Service) // keeps what its route said once, as in Knative
		o.Labels = kmeta.UnionMaps(was.Labels, o.Labels)
		o.Annotations = kmeta.UnionMaps(was.Annotations, o.Annotations)
		if o.Spec.ExternalName != was.Spec.ExternalName ||
			!maps.Equal(o.Labels, was.Labels) || !maps.Equal(o.Annotations, was.Annotations) {
			m.show(o, is)
		}
	}
}

// hostsOf returns the Services that stand for a route's URLs, by name.
func hostsOf(e *entry) map[string]*corev1.Service {
	if e == nil || e.object.(*v1.Route).Status.URL == nil {
		return nil
	}
	to := e.object.(*v1.Route)
	all := map[string]*corev1.Service{to.Name: hostOf(to, to.Name, to.Status.URL)}
	for _, t := range to.Status.Traffic {
		if t.URL != nil {
			of := t.Tag + "-" + to.Name
			all[of] = hostOf(to, of, t.URL)
		}
	}
	return all
}

// hostOf returns the Service that stands for a URL of a route.
func hostOf(to *v1.Route, of string, url *apis.URL) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: of, Namespace: to.Namespace,
			OwnerReferences: []metav1.OwnerReference{*kmeta.NewControllerRef(to)},
			Annotations:     maps.Clone(to.Annotations),
			Labels: kmeta.UnionMaps(to.Labels,
				map[string]string{serving.RouteLabelKey: to.Name})},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: bare(url.Host),
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "http2", Port: 80, Protocol: corev1.ProtocolTCP,
				TargetPort: intstr.FromInt32(80)}}},
	}
}

// leave forgets what there is to be seen of a namespace that has no owner any more. Its sandboxes
// may be starting still: nobody is shown what becomes of them.
func (m *mirror) leave(namespace string) {
	m.later(func() {
		for of, all := range m.told {
			for of.namespace == namespace && all.Len() > 0 {
				m.forget(all.Front())
			}
		}
		for _, k := range []*kind{pods, hosts} {
			all, _ := m.world.list(k, namespace)
			for _, e := range all {
				m.world.hide(e)
			}
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		maps.DeleteFunc(m.pods, func(_ string, p *pod) bool {
			return p.name.namespace == namespace
		})
		maps.DeleteFunc(m.named, func(n name, _ *pod) bool { return n.namespace == namespace })
	})
}

// show shows an object, in the place of what was shown before.
func (m *mirror) show(o object, old *entry) *entry {
	k := shownAs(o)
	if old == nil {
		o.SetUID(uuid.NewUUID())
		o.SetCreationTimestamp(now())
	} else {
		o.SetUID(old.object.GetUID())
		o.SetCreationTimestamp(old.object.GetCreationTimestamp())
	}
	e, err := m.world.show(k, o)
	if err != nil {
		m.log.Error("an object cannot be shown", "kind", k.Names.Kind, "err", err)
	}
	return e
}

func shownAs(o object) *kind {
	switch o.(type) {
	case *corev1.Pod:
		return pods
	case *corev1.Service:
		return hosts
	}
	return events
}
