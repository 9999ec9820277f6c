package knative

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	node "github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/limits"
)

// A lacking error says which Secret or ConfigMap a sandbox cannot be started without.
type lacking struct{ what string }

func (l *lacking) Error() string { return l.what }

// An unmade error says why there is nothing to ask a node for.
type unmade struct{ error }

func (u *unmade) Unwrap() error { return u.error }

// roomOf returns the bytes that an emptyDir takes at most. It lies in the sandbox's memory.
func roomOf(of *corev1.EmptyDirVolumeSource, v *v1.Revision) uint64 {
	memory := int64(programsOf(v)) << 20
	if said := of.SizeLimit; said != nil && said.Value() > 0 {
		return uint64(min(said.Value(), memory))
	}
	return uint64(memory / 2)
}

// What a program may be given of words and variables. No Linux starts one with a longer one.
const (
	mostWord  = 128 << 10
	mostText  = 1 << 20                    // of all
	mostName  = 1024                       // bytes of a variable's name that a text refers to
	mostNamed = 1000                       // variables, with sources of some
	mostParts = limits.Files / limits.Each // of volumes; no more files could be given
)

// A parcel holds what the programs of a sandbox are given, while that is put together: never more
// than they may have.
type parcel struct {
	*road
	revision  *v1.Revision
	namespace string
	env       map[string]string // of one program
	words     int               // bytes of words and variables of all
	files     int               // likewise
}

// lacks returns the first Secret, ConfigMap or key of one that a sandbox of a revision cannot be
// started without; nil: all are there. It copies nothing, so each request may ask.
func (r *road) lacks(v *v1.Revision) error {
	p := &parcel{road: r, revision: v, namespace: v.Namespace}
	for i := range v.Spec.Containers {
		if err := p.lacks(&v.Spec.Containers[i]); err != nil {
			return err
		}
	}
	mounts := mountsOf(v)
	for _, volume := range v.Spec.Volumes {
		if mounts[volume.Name] == 0 {
			continue
		}
		if err := p.lacksOf(&volume); err != nil {
			return err
		}
	}
	return nil
}

func (p *parcel) lacks(c *corev1.Container) error {
	for _, from := range c.EnvFrom {
		source := wholeOf(from)
		if _, err := p.objectOf(&source); err != nil {
			return err
		}
	}
	for _, e := range c.Env {
		if f := e.ValueFrom; f == nil || f.SecretKeyRef == nil && f.ConfigMapKeyRef == nil {
			continue // notGiven tells of others
		}
		source, key := sourceOf(e.ValueFrom)
		object, err := p.objectOf(&source)
		if err != nil {
			return err
		}
		if _, _, has := contentOf(object, key); !has && !optional(&source) {
			return p.keyless(&source, key)
		}
	}
	return nil
}

func (p *parcel) lacksOf(volume *corev1.Volume) error {
	sources, _ := sourcesOf(volume)
	for _, s := range sources {
		if s.Secret == nil && s.ConfigMap == nil {
			continue
		}
		object, err := p.objectOf(&s)
		if err != nil {
			return err
		}
		for _, item := range itemsOf(&s) {
			if _, _, has := contentOf(object, item.Key); !has && !optional(&s) {
				return p.keyless(&s, item.Key)
			}
		}
	}
	return nil
}

// keyless says that a Secret or a ConfigMap has no such key.
func (p *parcel) keyless(s *corev1.VolumeProjection, key string) error {
	what, name := nameOf(s)
	return &lacking{fmt.Sprintf("couldn't find key %s in %s %s/%s", key, what, p.namespace, name)}
}

// give returns a container as a node is asked for it, with variables and files as they are now, and
// its command, which may name variables. Platform's variables override those of whole objects, as a
// container's own do.
func (p *parcel) give(c *corev1.Container, platform map[string]string) (s *node.Sidecar,
	err error) {
	p.env = map[string]string{}
	s = &node.Sidecar{Name: c.Name, Image: c.Image, Dir: c.WorkingDir, Env: p.env}
	if sc := c.SecurityContext; sc != nil && sc.RunAsUser != nil {
		s.User = strconv.FormatInt(*sc.RunAsUser, 10)
		if sc.RunAsGroup != nil {
			s.User += ":" + strconv.FormatInt(*sc.RunAsGroup, 10)
		}
	}
	if err := p.variables(c, platform); err != nil {
		return nil, err
	}
	if s.Command, err = p.command(c.Command); err != nil {
		return nil, err
	}
	if s.Args, err = p.command(c.Args); err != nil {
		return nil, err
	}
	s.Mounts, err = p.mounts(c, func(m *corev1.VolumeMount, of *corev1.Volume) (
		[]*node.File, error) {
		files, err := p.filesOf(of)
		if err != nil {
			return nil, err
		}
		all := below(files, m.SubPath)
		if m.SubPath != "" && len(all) == 0 {
			return nil, &lacking{fmt.Sprintf("the volume %q has nothing at %q", m.Name, m.SubPath)}
		}
		return all, nil
	})
	return s, err
}

// mounts returns what a container mounts, in the order in which its node keeps it, with those files
// of each volume that are asked for.
func (p *parcel) mounts(c *corev1.Container, files func(*corev1.VolumeMount, *corev1.Volume) (
	[]*node.File, error)) (all []*node.Mount, err error) {
	v := p.revision
	times := mountsOf(v)
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(v.Spec.Volumes,
			func(of corev1.Volume) bool { return of.Name == m.Name })
		if i < 0 {
			continue // Knative has checked that there is one
		}
		p.files += limits.Each
		mount := &node.Mount{Path: path.Clean(m.MountPath)}
		if empty := v.Spec.Volumes[i].EmptyDir; empty != nil {
			mount.Room = roomOf(empty, v)
			if times[m.Name] > 1 {
				mount.Shared = m.Name
			}
		} else if mount.Files, err = files(&m, &v.Spec.Volumes[i]); err != nil {
			return nil, err
		}
		all = append(all, mount)
	}
	slices.SortFunc(all, // what is below another comes after it
		func(a, b *node.Mount) int { return cmp.Compare(a.Path, b.Path) })
	return all, nil
}

// takes counts so many bytes of words and variables.
func (p *parcel) takes(n int) error {
	if n+len("=\x00") > mostWord {
		return fmt.Errorf("a word or variable of over %d KiB: no program starts with that; "+
			"give it as a file", mostWord>>10)
	}
	if p.words += n; p.words > mostText {
		return fmt.Errorf("words and variables of over %d KiB in all; give some as files",
			mostText>>10)
	}
	return nil
}

// set gives the program a variable. A value other than text could reach it changed, or not at all.
func (p *parcel) set(name, value string) error {
	if err := p.takes(len(name) + len(value)); err != nil {
		return fmt.Errorf("the variable %.80q: %w", name, err)
	}
	if !utf8.ValidString(name+value) || strings.ContainsRune(name+value, 0) {
		return fmt.Errorf("the variable %.80q has no text; give it as a file", name)
	}
	p.env[name] = value
	return nil
}

// command returns words with the values of the variables that they name.
func (p *parcel) command(words []string) (all []string, err error) {
	for _, word := range words {
		if word, err = expanded(word, p.env); err == nil {
			err = p.takes(len(word))
		}
		if err == nil && strings.ContainsRune(word, 0) {
			err = errors.New("it has a zero byte")
		}
		if err != nil {
			return nil, fmt.Errorf("the container's command: %w", err)
		}
		all = append(all, word)
	}
	return all, nil
}

// variables gives the program a container's variables: those of whole objects, the platform's, and
// the container's own; the later override.
func (p *parcel) variables(c *corev1.Container, platform map[string]string) error {
	for _, from := range c.EnvFrom {
		source := wholeOf(from)
		object, err := p.objectOf(&source)
		if err != nil {
			return err
		}
		for key := range textsOf(object) {
			value, _ := textOf(object, key)
			if err := p.set(from.Prefix+key, value); err != nil {
				return err
			}
		}
	}
	for name, value := range platform {
		if err := p.set(name, value); err != nil {
			return err
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			value, err := expanded(e.Value, p.env)
			if err == nil {
				err = p.set(e.Name, value)
			}
			if err != nil {
				return err
			}
			continue
		}
		source, key := sourceOf(e.ValueFrom)
		object, err := p.objectOf(&source)
		if err != nil {
			return err
		}
		value, has := textOf(object, key)
		switch {
		case has:
			if err := p.set(e.Name, value); err != nil {
				return err
			}
		case !optional(&source):
			return p.keyless(&source, key)
		}
	}
	return nil
}

// wholeOf returns a source of variables as one of files, which has the same fields.
func wholeOf(from corev1.EnvFromSource) (s corev1.VolumeProjection) {
	switch {
	case from.SecretRef != nil:
		s.Secret = &corev1.SecretProjection{
			LocalObjectReference: from.SecretRef.LocalObjectReference,
			Optional:             from.SecretRef.Optional}
	case from.ConfigMapRef != nil:
		s.ConfigMap = &corev1.ConfigMapProjection{
			LocalObjectReference: from.ConfigMapRef.LocalObjectReference,
			Optional:             from.ConfigMapRef.Optional}
	}
	return s
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
	switch {
	case s.Secret != nil:
		return s.Secret.Items
	case s.ServiceAccountToken != nil:
		return []corev1.KeyToPath{{Path: s.ServiceAccountToken.Path}}
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

// objectOf returns a Secret or a ConfigMap. One that is optional may be missing.
func (p *parcel) objectOf(s *corev1.VolumeProjection) (any, error) {
	what, name := nameOf(s)
	of := configMaps
	if s.Secret != nil {
		of = secrets
	}
	e := p.world.get(of, p.namespace, name)
	switch {
	case e != nil:
		return e.object, nil
	case optional(s):
		return nil, nil
	}
	return nil, &lacking{fmt.Sprintf("%s %q not found", strings.ToLower(what), name)}
}

// textOf returns what a variable can be made of: not what a ConfigMap has of binary data.
func textOf(object any, key string) (text string, has bool) {
	switch o := object.(type) {
	case *corev1.Secret:
		var data []byte
		data, has = o.Data[key]
		return string(data[:min(len(data), mostWord)]), has // more is too much in any case
	case *corev1.ConfigMap:
		text, has = o.Data[key]
	}
	return text, has
}

// textsOf ranges over the keys that textOf knows.
func textsOf(object any) iter.Seq[string] {
	switch o := object.(type) {
	case *corev1.Secret:
		return maps.Keys(o.Data)
	case *corev1.ConfigMap:
		return maps.Keys(o.Data)
	}
	return func(func(string) bool) {}
}

// filesOf returns the files of a volume. Where two sources have one of the same path, the later has
// it.
func (p *parcel) filesOf(of *corev1.Volume) (map[string]*node.File, error) {
	sources, mode := sourcesOf(of)
	files := map[string]*node.File{}
	put := func(at string, size int, data func() []byte, mode int32) error {
		if p.files += limits.OfFile(at, size); p.files > limits.Files {
			return fmt.Errorf("the files of all volumes take over %d MiB", limits.Files>>20)
		}
		files[at] = &node.File{Name: at, Data: data(),
			Mode: uint32(mode) & uint32(fs.ModePerm)}
		return nil
	}
	general := ptr.Deref(mode, corev1.SecretVolumeSourceDefaultMode)
	for _, s := range sources {
		if as := s.ServiceAccountToken; as != nil {
			token, err := p.tokenOf(as)
			if err == nil {
				err = put(as.Path, len(token), func() []byte { return token }, general)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		object, err := p.objectOf(&s)
		if err != nil {
			return nil, err
		}
		for _, item := range placesOf(&s, object) {
			size, data, has := contentOf(object, item.Key)
			if !has && !optional(&s) {
				return nil, p.keyless(&s, item.Key)
			} else if has {
				err := put(item.Path, size, data, ptr.Deref(item.Mode, general))
				if err != nil {
					return nil, err
				}
			}
		}
	}
	return files, nil
}

// tokenOf returns a new token of the revision's service account.
func (p *parcel) tokenOf(as *corev1.ServiceAccountTokenProjection) ([]byte, error) {
	token, err := p.tokens.sign(p.namespace, p.revision.Spec.ServiceAccountName, as, time.Now())
	return []byte(token), err
}

// contentOf returns the size of what a key of a Secret or a ConfigMap has, and that itself, which
// is copied when it is asked for.
func contentOf(object any, key string) (size int, data func() []byte, has bool) {
	var content []byte
	switch o := object.(type) {
	case *corev1.Secret:
		content, has = o.Data[key]
	case *corev1.ConfigMap:
		if text, is := o.Data[key]; is {
			return len(text), func() []byte { return []byte(text) }, true
		}
		content, has = o.BinaryData[key]
	}
	return len(content), func() []byte { return content }, has
}

// placesOf returns which keys of its object a source has, and where.
func placesOf(s *corev1.VolumeProjection, object any) []corev1.KeyToPath {
	items := itemsOf(s)
	if len(items) == 0 {
		for _, key := range keysIn(object) {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
	}
	return items
}

// keysIn returns all keys of a Secret or a ConfigMap.
func keysIn(object any) (keys []string) {
	keys = slices.Collect(textsOf(object))
	if o, is := object.(*corev1.ConfigMap); is {
		keys = slices.AppendSeq(keys, maps.Keys(o.BinaryData))
	}
	return keys
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
func expanded(text string, env map[string]string) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, after, closed := "", "", false
		if strings.HasPrefix(rest, "(") {
			near := rest[1:min(len(rest), mostName)]
			if name, _, closed = strings.Cut(near, ")"); closed {
				after = rest[len("(")+len(name)+len(")"):]
			}
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
		if b.Len() > mostWord {
			return "", fmt.Errorf("%.80q becomes longer than %d KiB by the variables that it names",
				text, mostWord>>10)
		}
	}
}
