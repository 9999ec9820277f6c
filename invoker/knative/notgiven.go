package knative

import (
	"fmt"
	"io/fs"

	corev1 "k8s.io/api/core/v1"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/node-agent/api/limits"
)

// notGiven returns which of their variables and files a revision's containers cannot be given here,
// though Knative allows it; empty: they can be given all.
func notGiven(v *v1.Revision) string {
	named, mounts := 0, 0
	for i := range v.Spec.Containers {
		c := &v.Spec.Containers[i]
		named += len(c.Env) + len(c.EnvFrom)
		mounts += len(c.VolumeMounts)
		if why := notGivenTo(c); why != "" {
			return why
		}
	}
	switch {
	case len(v.Spec.Containers) > 1+limits.Sidecars:
		return fmt.Sprintf("the revision has %d containers; at most %d are served here",
			len(v.Spec.Containers), 1+limits.Sidecars)
	case named > mostNamed:
		return fmt.Sprintf("the revision names %d variables and their sources; at most %d are "+
			"served here", named, mostNamed)
	case mounts > limits.Mounts || len(v.Spec.Volumes) > limits.Mounts:
		return fmt.Sprintf("the revision has more than %d volumes or mounts", limits.Mounts)
	}
	return notGivenOf(v)
}

// notGivenTo does so of a container's variables.
func notGivenTo(c *corev1.Container) string {
	for _, e := range c.Env {
		if f := e.ValueFrom; f != nil && f.SecretKeyRef == nil && f.ConfigMapKeyRef == nil {
			return fmt.Sprintf("the variable %s is to come from what is not served here; take it "+
				"from a Secret or a ConfigMap, or give it a value", e.Name)
		}
	}
	return ""
}

// notGivenOf does so of the volumes.
func notGivenOf(v *v1.Revision) string {
	mounts, parts := mountsOf(v), 0 // parts of all that is mounted
	for _, volume := range v.Spec.Volumes {
		if volume.EmptyDir != nil {
			for _, c := range v.Spec.Containers {
				if mountsIn(&c, volume.Name) > 1 {
					return fmt.Sprintf("the volume %s is an emptyDir; mount it once in a "+
						"container, and whole", volume.Name)
				}
			}
			continue
		}
		sources, _ := sourcesOf(&volume)
		if len(sources) > limits.Mounts {
			return fmt.Sprintf("the volume %s projects more than %d sources", volume.Name,
				limits.Mounts)
		}
		if len(sources) == 0 {
			return fmt.Sprintf("the volume %s is of a kind that is not served here; use a Secret, "+
				"a ConfigMap, these and tokens projected, or an emptyDir", volume.Name)
		}
		for _, s := range sources {
			if s.Secret == nil && s.ConfigMap == nil && s.ServiceAccountToken == nil {
				return fmt.Sprintf("the volume %s projects what is not served here; use Secrets, "+
					"ConfigMaps and tokens of service accounts", volume.Name)
			}
			if t := s.ServiceAccountToken; t != nil && !mayLive(t) {
				return fmt.Sprintf("the volume %s projects a token of %d s; give it %d to %d",
					volume.Name, *t.ExpirationSeconds, leastToken, mostToken)
			}
			parts += mounts[volume.Name] * (1 + len(itemsOf(&s)))
			if parts > mostParts { // what is missing takes time to look for, too
				return fmt.Sprintf("the volumes have over %d sources and items, counted once for "+
					"each mount", mostParts)
			}
			for _, item := range itemsOf(&s) {
				if !fs.ValidPath(item.Path) || item.Path == "." || limits.TooLong(item.Path) {
					return fmt.Sprintf("the volume %s has an item at %.80q; use a path below it, "+
						"of at most %d folders", volume.Name, item.Path, limits.Parts-1)
				}
			}
		}
	}
	return ""
}

// mountsOf counts the mounts of each volume, in all containers.
func mountsOf(v *v1.Revision) map[string]int {
	all := map[string]int{}
	for _, c := range v.Spec.Containers {
		for _, m := range c.VolumeMounts {
			all[m.Name]++
		}
	}
	return all
}

// mountsIn counts the mounts of a volume in a container. One of a part of it counts as several.
func mountsIn(c *corev1.Container, volume string) (n int) {
	for _, m := range c.VolumeMounts {
		if m.Name == volume {
			if n++; m.SubPath != "" {
				n++
			}
		}
	}
	return n
}
