package knative

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	node "github.com/fastiov/fastiov/node-agent/api"
)

// A lacking error says which Secret or ConfigMap a sandbox cannot be started without.
type lacking struct{ what string }

func (l *lacking) Error() string { return l.what }

// notGiven returns which of a container's variables and files it cannot be given here, though
// Knative allows it; empty: it can be given all.
func notGiven(v *v1.Revision) string {
	for _, e := range v.Spec.GetContainer().Env {
		if f := e.ValueFrom; f != nil && f.SecretKeyRef == nil && f.ConfigMapKeyRef == nil {
			return fmt.Sprintf("the variable %s is to come from what is not served here; take it "+
				"from a Secret or a ConfigMap, or give it a value", e.Name)
		}
	}
	for _, volume := range v.Spec.Volumes {
		sources, _ := sourcesOf(&volume)
		if len(sources) == 0 {
			return fmt.Sprintf("the volume %s is of a kind that is not served here; use a Secret, "+
				"a ConfigMap or both, projected", volume.Name)
		}
		for _, s := range sources {
			if s.Secret == nil && s.ConfigMap == nil {
				return fmt.Sprintf("the volume %s projects what is not served here; use Secrets "+
					"and ConfigMaps", volume.Name)
			}
			for _, item := range itemsOf(&s) {
				if !fs.ValidPath(item.Path) || item.Path == "." {
					return fmt.Sprintf("the volume %s has an item at %q; use a path below it",
						volume.Name, item.Path)
				}
			}
		}
	}
	return ""
}

// give fills in a container's variables and files, as they are now, and its command, which may name
// variables.
func (r *road) give(v *v1.Revision, s *node.StartRequest) error {
	c := v.Spec.GetContainer()
	if err := r.variables(v.Namespace, c, s.Env); err != nil {
		return err
	}
	for _, word := range c.Command {
		s.Command = append(s.Command, expanded(word, s.Env))
	}
	for _, word := range c.Args {
		s.Args = append(s.Args, expanded(word, s.Env))
	}
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(v.Spec.Volumes,
			func(of corev1.Volume) bool { return of.Name == m.Name })
		if i < 0 {
			continue // Knative has checked that there is one
		}
		files, err := r.filesOf(v.Namespace, &v.Spec.Volumes[i])
		if err != nil {
			return err
		}
		mount := &node.Mount{Path: path.Clean(m.MountPath), Files: below(files, m.SubPath)}
		if m.SubPath != "" && len(mount.Files) == 0 {
			return &lacking{fmt.Sprintf("the volume %q has nothing at %q", m.Name, m.SubPath)}
		}
		s.Mounts = append(s.Mounts, mount)
	}
	slices.SortFunc(s.Mounts, // what is below another comes after it
		func(a, b *node.Mount) int { return cmp.Compare(a.Path, b.Path) })
	return nil
}

// variables adds a container's variables: those of whole objects first, which its own override.
func (r *road) variables(namespace string, c *corev1.Container, env map[string]string) error {
	for _, from := range c.EnvFrom {
		source := corev1.VolumeProjection{}
		switch {
		case from.SecretRef != nil:
			source.Secret = &corev1.SecretProjection{
				LocalObjectReference: from.SecretRef.LocalObjectReference,
				Optional:             from.SecretRef.Optional}
		case from.ConfigMapRef != nil:
			source.ConfigMap = &corev1.ConfigMapProjection{
				LocalObjectReference: from.ConfigMapRef.LocalObjectReference,
				Optional:             from.ConfigMapRef.Optional}
		}
		values, err := r.valuesOf(namespace, &source)
		if err != nil {
			return err
		}
		for key, value := range values {
			env[from.Prefix+key] = string(value)
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			env[e.Name] = expanded(e.Value, env)
			continue
		}
		source, key := sourceOf(e.ValueFrom)
		values, err := r.valuesOf(namespace, &source)
		if err != nil {
			return err
		}
		value, has := values[key]
		switch {
		case has:
			env[e.Name] = string(value)
		case !optional(&source):
			what, name := nameOf(&source)
			return &lacking{fmt.Sprintf("couldn't find key %s in %s %s/%s", key, what, namespace,
				name)}
		}
	}
	return nil
}

func sourceOf(from *corev1.EnvVarSource) (s corev1.VolumeProjection, key string) {
	if of := from.SecretKeyRef; of != nil {
		s.Secret = &corev1.SecretProjection{
			LocalObjectReference: of.LocalObjectReference, Optional: of.Optional}
		return s, of.Key
	}
	of := from.ConfigMapKeyRef
	s.ConfigMap = &corev1.ConfigMapProjection{
		LocalObjectReference: of.LocalObjectReference, Optional: of.Optional}
	return s, of.Key
}

// sourcesOf returns what a volume is made of, and its files' permissions.
func sourcesOf(of *corev1.Volume) (all []corev1.VolumeProjection, mode *int32) {
	switch {
	case of.Secret != nil:
		return []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: of.Secret.SecretName},
			Items:                of.Secret.Items, Optional: of.Secret.Optional,
		}}}, of.Secret.DefaultMode
	case of.ConfigMap != nil:
		return []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: of.ConfigMap.LocalObjectReference,
			Items:                of.ConfigMap.Items, Optional: of.ConfigMap.Optional,
		}}}, of.ConfigMap.DefaultMode
	case of.Projected != nil:
		return of.Projected.Sources, of.Projected.DefaultMode
	}
	return nil, nil
}

func itemsOf(s *corev1.VolumeProjection) []corev1.KeyToPath {
	if s.Secret != nil {
		return s.Secret.Items
	}
	return s.ConfigMap.Items
}

func optional(s *corev1.VolumeProjection) bool {
	if s.Secret != nil {
		return ptr.Deref(s.Secret.Optional, false)
	}
	return ptr.Deref(s.ConfigMap.Optional, false)
}

func nameOf(s *corev1.VolumeProjection) (what, name string) {
	if s.Secret != nil {
		return "Secret", s.Secret.Name
	}
	return "ConfigMap", s.ConfigMap.Name
}

// valuesOf returns what a Secret or a ConfigMap has. One that is optional may be missing.
func (r *road) valuesOf(namespace string, s *corev1.VolumeProjection) (map[string][]byte, error) {
	what, name := nameOf(s)
	of := configMaps
	if s.Secret != nil {
		of = secrets
	}
	e := r.world.get(of, namespace, name)
	switch {
	case e == nil && optional(s):
		return nil, nil
	case e == nil:
		return nil, &lacking{fmt.Sprintf("%s %q not found", strings.ToLower(what), name)}
	}
	switch o := e.object.(type) {
	case *corev1.Secret:
		return o.Data, nil
	case *corev1.ConfigMap:
		all := maps.Clone(o.BinaryData)
		if all == nil {
			all = map[string][]byte{}
		}
		for key, text := range o.Data {
			all[key] = []byte(text)
		}
		return all, nil
	}
	return nil, nil
}

// filesOf returns the files of a volume. Where two sources have one of the same path, the later has
// it.
func (r *road) filesOf(namespace string, of *corev1.Volume) (map[string]*node.File, error) {
	sources, mode := sourcesOf(of)
	files := map[string]*node.File{}
	put := func(at string, data []byte, mode int32) {
		files[at] = &node.File{Name: at, Data: data, Mode: uint32(mode) & uint32(fs.ModePerm)}
	}
	general := ptr.Deref(mode, corev1.SecretVolumeSourceDefaultMode)
	for _, s := range sources {
		values, err := r.valuesOf(namespace, &s)
		if err != nil {
			return nil, err
		}
		items := itemsOf(&s)
		for _, item := range items {
			data, has := values[item.Key]
			if !has && !optional(&s) {
				what, name := nameOf(&s)
				return nil, &lacking{fmt.Sprintf("couldn't find key %s in %s %s/%s", item.Key, what,
					namespace, name)}
			} else if has {
				put(item.Path, data, ptr.Deref(item.Mode, general))
			}
		}
		if len(items) == 0 {
			for key, data := range values {
				put(key, data, general)
			}
		}
	}
	return files, nil
}

// below returns the files of a volume that are below a path of it, or the one that is there.
func below(files map[string]*node.File, part string) (all []*node.File) {
	part = strings.Trim(path.Clean("/"+part), "/")
	if f := files[part]; f != nil {
		return []*node.File{{Data: f.Data, Mode: f.Mode}}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		if part != "" {
			rest, is := strings.CutPrefix(name, part+"/")
			if !is {
				continue
			}
			f = &node.File{Name: rest, Data: f.Data, Mode: f.Mode}
		}
		all = append(all, f)
	}
	return all
}

// expanded returns a text with the values of the variables that it names as $(NAME). Those that are
// not known stay as they are, and $$ is a $.
func expanded(text string, env map[string]string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		name, after, closed := "", "", false
		if strings.HasPrefix(rest, "(") {
			name, after, closed = strings.Cut(rest[1:], ")")
		}
		value, known := env[name]
		switch {
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			text = rest[1:]
		case closed && known:
			b.WriteString(value)
			text = after
		default:
			b.WriteByte('$')
			text = rest
		}
	}
}
