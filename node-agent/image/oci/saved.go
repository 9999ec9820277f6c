package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Saved holds images that somebody saved in a file or a directory: an OCI layout, or what
// `docker save` writes, which may be both. It is read as a registry is, with the same trust.
type Saved struct {
	path  string
	files files
	close func()
}

// files opens the files of saved images.
type files func(name string) (io.ReadCloser, error)

// The files in which saved images say what they have, and how long those may be.
const (
	layoutIndex  = "index.json"
	dockerIndex  = "manifest.json"
	maxMembers   = 100_000
	maxLinkDepth = 8
)

// OpenSaved opens a directory, or a tar archive, of images.
func OpenSaved(path string) (*Saved, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	s := &Saved{path: path}
	if info.IsDir() {
		root, err := os.OpenRoot(path)
		if err != nil {
			return nil, err
		}
		s.files = func(name string) (io.ReadCloser, error) { return root.Open(name) }
		s.close = func() { root.Close() }
		return s, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return ReadSaved(f, path)
}

// ReadSaved is OpenSaved for an archive that is open. It closes it, also where it fails.
func ReadSaved(f *os.File, called string) (*Saved, error) {
	s := &Saved{path: called, close: func() { f.Close() }}
	var err error
	if s.files, err = membersOf(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", called, err)
	}
	return s, nil
}

// Close closes the file or the directory.
func (s *Saved) Close() { s.close() }

// membersOf finds the members of an archive, whose contents stay where they are.
func membersOf(f *os.File) (files, error) {
	type member struct {
		at, size int64
		link     string
	}
	members := map[string]member{}
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("it is neither a directory nor a tar archive: %w; "+
				"decompress it first if it is compressed", err)
		}
		m := member{size: h.Size}
		switch h.Typeflag {
		case tar.TypeReg:
			if m.at, err = f.Seek(0, io.SeekCurrent); err != nil {
				return nil, err
			}
		case tar.TypeSymlink: // of a layer that two images have
			m.link = path.Join(path.Dir(h.Name), h.Linkname)
		case tar.TypeLink:
			m.link = path.Clean(h.Linkname)
		default:
			continue
		}
		if members[path.Clean(h.Name)] = m; len(members) > maxMembers {
			return nil, fmt.Errorf("it has more than %d files", maxMembers)
		}
	}
	return func(name string) (io.ReadCloser, error) {
		at := path.Clean(name)
		for range maxLinkDepth {
			m, has := members[at]
			if !has {
				break
			}
			if m.link == "" {
				return io.NopCloser(io.NewSectionReader(f, m.at, m.size)), nil
			}
			at = m.link
		}
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}, nil
}

// small reads a file that describes others.
func (s *Saved) small(name string) ([]byte, error) {
	f, err := s.files(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxAnswer+1))
	if err == nil && len(b) > maxAnswer {
		err = refuse(TooLarge, "%s has more than %d MB", name, maxAnswer>>20)
	}
	return b, err
}

// Images returns the images that are saved, each with its reference in full. Where given is not
// empty, there may be one alone, and that is its reference.
func (s *Saved) Images(ctx context.Context, given string) (images []*Image, err error) {
	raw, err := s.small(layoutIndex)
	if err == nil {
		images, err = s.layout(raw, given)
	} else if errors.Is(err, fs.ErrNotExist) {
		if raw, err = s.small(dockerIndex); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s has neither %s, as an OCI layout, nor %s, as what `docker "+
				"save` writes", s.path, layoutIndex, dockerIndex)
		}
		if err == nil {
			images, err = s.docker(ctx, raw, given)
		}
	}
	if err == nil && given != "" && len(images) > 1 {
		err = fmt.Errorf("it has %d images, and one name was given for them", len(images))
	}
	if err != nil {
		return nil, refusalOrOurs(s.path, err)
	}
	return images, nil
}

// refusalOrOurs is refusal for what no registry sent.
func refusalOrOurs(path string, err error) error {
	if known := (because{}); errors.As(err, &known) {
		return refusal(path, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// The annotations by which tools name the images of a layout.
const (
	nameOfContainerd = "io.containerd.image.name"
	nameOfLayout     = "org.opencontainers.image.ref.name"
)

// layout reads the index of an OCI layout.
func (s *Saved) layout(raw []byte, given string) (images []*Image, err error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, refuse(Unusable, "its index: %w", err)
	}
	for _, d := range index.Manifests {
		ref := given
		for _, from := range []string{nameOfContainerd, nameOfLayout} {
			if ref == "" && strings.ContainsAny(d.Annotations[from], ":/") { // more than a tag
				ref = d.Annotations[from]
			}
		}
		i, err := s.image(ref)
		if err != nil {
			return nil, err
		}
		manifest, err := s.manifest(d.Digest)
		if err != nil {
			return nil, err
		}
		if d.MediaType.IsIndex() {
			chosen, err := choose(manifest)
			if err != nil {
				return nil, err
			}
			if manifest, err = s.manifest(chosen); err != nil {
				return nil, err
			}
		}
		i.local = func(of v1.Hash) (io.ReadCloser, error) { return s.files(blobAt(of)) }
		if err := i.take(manifest, types.OCIManifestSchema1); err != nil {
			return nil, err
		}
		images = append(images, i)
	}
	return images, nil
}

func blobAt(digest v1.Hash) string { return path.Join("blobs", digest.Algorithm, digest.Hex) }

func (s *Saved) manifest(digest v1.Hash) ([]byte, error) {
	raw, err := s.small(blobAt(digest))
	if err == nil && digestOf(raw) != digest.String() {
		err = refuse(NotItself, "its manifest %s has the digest %s", digest, digestOf(raw))
	}
	return raw, err
}

// image returns an image without its manifest.
func (s *Saved) image(ref string) (*Image, error) {
	if ref == "" {
		return nil, errors.New("it does not say what its image is called; give the name behind it")
	}
	reference, err := name.ParseReference(ref)
	if err != nil {
		return nil, refuse(Unusable, "%q is no OCI reference: %w", ref, err)
	}
	return &Image{Ref: reference.Name(), Repository: reference.Context().String(),
		ref: ref, at: reference.Context()}, nil
}

// docker reads what `docker save` writes, which names files and no digests.
func (s *Saved) docker(ctx context.Context, raw []byte, given string) (images []*Image, err error) {
	var saved []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(raw, &saved); err != nil {
		return nil, refuse(Unusable, "its %s: %w", dockerIndex, err)
	}
	for _, from := range saved {
		if len(from.Layers) > maxLayers {
			return nil, refuse(TooLarge, "it has %d layers, more than %d", len(from.Layers),
				maxLayers)
		}
		m := v1.Manifest{SchemaVersion: 2, MediaType: types.DockerManifestSchema2}
		at := map[v1.Hash]string{}
		for n, file := range append([]string{from.Config}, from.Layers...) {
			d, err := s.describe(ctx, file)
			if err != nil {
				return nil, err
			}
			at[d.Digest] = file
			if n == 0 {
				m.Config = d
			} else {
				m.Layers = append(m.Layers, d)
			}
		}
		manifest, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		refs := from.RepoTags
		if given != "" {
			refs = []string{given}
		}
		if len(refs) == 0 {
			refs = []string{""} // which says what is missing
		}
		for _, ref := range refs {
			i, err := s.image(ref)
			if err != nil {
				return nil, err
			}
			i.local = func(of v1.Hash) (io.ReadCloser, error) { return s.files(at[of]) }
			if err := i.take(manifest, m.MediaType); err != nil {
				return nil, err
			}
			images = append(images, i)
		}
	}
	return images, nil
}

// describe finds the size and the digest of a file.
func (s *Saved) describe(ctx context.Context, file string) (d v1.Descriptor, err error) {
	f, err := s.files(file)
	if err != nil {
		return d, err
	}
	defer f.Close()
	h := sha256.New()
	d.Size, err = io.Copy(h, &until{ctx, f})
	d.Digest = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
	return d, err
}

// until reads until ctx ends.
type until struct {
	ctx context.Context
	io.Reader
}

func (u *until) Read(b []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.Reader.Read(b)
}

// saved copies a part of a saved image to w, if it is what the manifest names.
func (i *Image) saved(ctx context.Context, d v1.Descriptor, w io.Writer) error {
	f, err := i.local(d.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		return refuse(NotFound, "%s is missing", d.Digest)
	}
	if err != nil {
		return ours(err)
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(h, &i.received, w), &until{ctx, io.LimitReader(f, d.Size+1)})
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); n != d.Size || got != d.Digest.Hex {
		return refuse(NotItself, "%s is there as sha256:%s", d.Digest, got)
	}
	return nil
}
