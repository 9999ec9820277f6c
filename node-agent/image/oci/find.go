package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// How large an image's config may be in bytes, and how many layers it may have.
const (
	maxConfig = 4 << 20
	maxLayers = 512
)

// A Source pulls images from registries, once Allow has said from which.
type Source struct {
	Fetched func(bytes int64) // is called with the number of bytes that came in
	allowed atomic.Pointer[allowed]
}

type allowed struct {
	registries  *Registries
	credentials Credentials
}

// Allow sets where images may come from, and with what credentials, for every Find from now on.
func (s *Source) Allow(registries *Registries, credentials Credentials) {
	s.allowed.Store(&allowed{registries, credentials})
}

// An Image is an image whose manifest was fetched and verified. Close it.
type Image struct {
	Ref        string // in full
	Repository string // registry and name in it
	Digest     string
	Namespace  string // whose credentials it comes with
	Bytes      int64  // of all its layers as they are transferred
	ref        string
	manifest   v1.Manifest
	config     []byte
	at         name.Repository
	hosts      []*host              // that may have it; the first has
	first      atomic.Pointer[host] // behind those that lied; nil: none did
	reach      func(context.Context, *host) error
	received   count
	local      func(v1.Hash) (io.ReadCloser, error) // opens a part of a saved image
}

// count counts what is written to it.
type count struct{ atomic.Int64 }

func (c *count) Write(b []byte) (int, error) {
	c.Add(int64(len(b)))
	return len(b), nil
}

// Layers describes the image's layers, the lowest first.
func (i *Image) Layers() []v1.Descriptor { return i.manifest.Layers }

// Received returns how many bytes have come from the registry.
func (i *Image) Received() int64 { return i.received.Load() }

// Verify returns an error unless the layers are those that the configuration names, and have no
// more than content together.
func (i *Image) Verify(diffIDs []string, layers []Layer, content int64) error {
	var total int64
	for n, l := range layers {
		if l.DiffID != diffIDs[n] {
			return refusal(i.ref, refuse(NotItself, "layer %d: its diff id is %s and its contents "+
				"have %s", n+1, diffIDs[n], l.DiffID))
		}
		if total += l.Content(); total > content {
			return refusal(i.ref, refuse(TooLarge, "its layers have more than %d MB", content>>20))
		}
	}
	return nil
}

// Registry is the host that the image comes from; a saved image comes from none.
func (i *Image) Registry() string {
	if i.local != nil {
		return ""
	}
	return i.at.RegistryStr()
}

// MayHave returns an error unless the registry would give the n-th layer to whoever pulls this
// image. A layer that is here may have come by another's pull.
func (i *Image) MayHave(ctx context.Context, n int) error {
	if i.local != nil {
		return nil
	}
	digest := i.manifest.Layers[n].Digest.String()
	var err error
	for h := i.hosts[0]; h != nil; h = i.after(ctx, h) {
		resp, failed := i.request(ctx, h, http.MethodHead, "blobs", digest, "")
		if failed == nil {
			resp.Body.Close()
			return nil
		}
		err = failed
	}
	return refusal(i.ref, fmt.Errorf("layer %d: %w", n+1, err))
}

// Find asks the registry for the image that ref names, with the credentials of namespace.
func (s *Source) Find(ctx context.Context, ref, namespace string) (*Image, error) {
	i, err := s.find(ctx, ref, namespace)
	return i, refusal(ref, err)
}

func (s *Source) find(ctx context.Context, ref, namespace string) (i *Image, err error) {
	allowed := s.allowed.Load()
	reference, err := allowed.registries.parse(ref)
	if err != nil {
		return nil, err
	}
	repository := reference.Context()
	i = &Image{Ref: reference.Name(), Repository: repository.String(), Namespace: namespace,
		ref: ref, at: repository}
	if i.hosts, err = allowed.registries.hostsOf(ctx, repository.RegistryStr()); err != nil {
		return nil, err
	}
	i.reach = func(ctx context.Context, h *host) error {
		return i.connect(ctx, s, allowed, h, namespace)
	}
	if err := i.resolve(ctx, reference); err != nil {
		i.Close()
		return nil, err
	}
	return i, nil
}

func (r *Registries) schemeTo(host string) string {
	if r.told[dialled(host, "http")] == "http" {
		return "http"
	}
	return "https"
}

// Close closes the connections to the registry.
func (i *Image) Close() {
	for _, h := range i.hosts {
		h.close()
	}
}

// resolve finds the manifest for linux/amd64 by the first host that has it. If the reference leads
// to an index, it goes by the index.
func (i *Image) resolve(ctx context.Context, reference name.Reference) error {
	_, byDigest := reference.(name.Digest)
	err := refuse(Unreachable, "no host of %s is asked for tags", i.at.RegistryStr())
	var before string // what the hosts before said
	for n, h := range i.hosts {
		if !h.resolves && !byDigest {
			continue
		}
		if err = i.reach(ctx, h); err == nil {
			err = i.resolveAt(ctx, h, reference)
		}
		if err == nil {
			i.hosts = append(append([]*host{h}, i.hosts[n+1:]...), i.hosts[:n]...)
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		if n < len(i.hosts)-1 {
			before += fmt.Sprintf("; before, %s: %v", h.root.Host, err)
		}
	}
	if before != "" {
		err = fmt.Errorf("%w%s", err, before)
	}
	return err
}

func (i *Image) resolveAt(ctx context.Context, h *host, reference name.Reference) error {
	raw, kind, err := i.fetchManifest(ctx, h, reference.Identifier())
	if err != nil {
		return err
	}
	if kind.IsIndex() {
		digest, err := choose(raw)
		if err != nil {
			return err
		}
		if raw, kind, err = i.fetchManifest(ctx, h, digest.String()); err != nil {
			return err
		}
	}
	return i.take(raw, kind)
}

// take makes a manifest the image's.
func (i *Image) take(raw []byte, kind types.MediaType) error {
	i.Digest = digestOf(raw)
	if err := json.Unmarshal(raw, &i.manifest); err != nil {
		return refuse(Unusable, "its manifest: %w", err)
	}
	switch {
	case i.manifest.SchemaVersion == 1 || kind.IsSchema1():
		return refuse(Unusable, "its manifest is of schema 1, which names no configuration and no "+
			"diff ids to verify; pull and push it with Docker 1.10 or newer")
	case !kind.IsImage():
		return refuse(Unusable, "its manifest is of type %q", kind)
	}
	return i.bound()
}

// bound returns an error if the image is too large according to its manifest.
func (i *Image) bound() error {
	m := &i.manifest
	if m.Config.Size > maxConfig {
		return refuse(TooLarge, "its configuration has %d bytes, more than %d",
			m.Config.Size, maxConfig)
	}
	if len(m.Layers) > maxLayers {
		return refuse(TooLarge, "it has %d layers, more than %d", len(m.Layers), maxLayers)
	}
	for _, d := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if d.Size < 0 || d.Digest.Algorithm != "sha256" {
			return refuse(Unusable, "a part of %d bytes, known by %q", d.Size, d.Digest)
		}
		if i.Bytes += d.Size; i.Bytes > MaxContent {
			return refuse(TooLarge, "it has more than %d MB", MaxContent>>20)
		}
	}
	return nil
}

func choose(raw []byte) (v1.Hash, error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return v1.Hash{}, refuse(Unusable, "its index: %w", err)
	}
	for _, variant := range []string{"", "v1"} { // what any processor runs
		for _, m := range index.Manifests {
			if p := m.Platform; p != nil && p.OS == "linux" && p.Architecture == "amd64" &&
				p.Variant == variant {
				return m.Digest, nil
			}
		}
	}
	return v1.Hash{}, refuse(Unusable, "it is not made for linux/amd64, which microVMs are")
}

var manifestTypes = []types.MediaType{
	types.OCIManifestSchema1, types.DockerManifestSchema2, types.OCIImageIndex,
	types.DockerManifestList,
}

// fetchManifest reads a manifest or an index by tag or by digest, and checks the digest if it has
// one.
func (i *Image) fetchManifest(ctx context.Context, h *host, by string) (
	[]byte, types.MediaType, error) {
	resp, err := i.get(ctx, h, "manifests", by, "")
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, "", err
	}
	if strings.Contains(by, ":") && by != digestOf(raw) {
		return nil, "", refuse(NotItself, "its manifest %s has the digest %s", by, digestOf(raw))
	}
	var stated struct {
		MediaType types.MediaType `json:"mediaType"`
	}
	if err := json.Unmarshal(raw, &stated); err != nil {
		return nil, "", refuse(Unusable, "its manifest: %w", err)
	}
	if stated.MediaType == "" { // OCI allows an absent media type; then the answer's header has it
		stated.MediaType = types.MediaType(resp.Header.Get("Content-Type"))
	}
	return raw, stated.MediaType, nil
}

// get asks for a manifest, or for a range of a blob.
func (i *Image) get(ctx context.Context, h *host, kind, by, bytes string) (
	*http.Response, error) {
	return i.request(ctx, h, http.MethodGet, kind, by, bytes)
}

// request asks again where the registry has too much to do.
func (i *Image) request(ctx context.Context, h *host, method, kind, by, bytes string) (
	*http.Response, error) {
	good := []int{http.StatusOK, http.StatusPartialContent}
	if method == http.MethodHead { // or where the registry would send us
		good = append(good, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
			http.StatusPermanentRedirect, http.StatusMovedPermanently)
	}
	for tried := 0; ; tried++ {
		resp, err := i.ask(ctx, h, method, kind, by, bytes)
		if err != nil {
			return nil, err
		}
		busy := resp.StatusCode == http.StatusTooManyRequests ||
			resp.StatusCode == http.StatusServiceUnavailable
		if busy && tried < maxTries-1 {
			resp.Body.Close()
			if !pause(ctx, retryAfter(resp, tried)) {
				return nil, context.Cause(ctx)
			}
			continue
		}
		if err = transport.CheckError(resp, good...); err != nil {
			resp.Body.Close()
			return nil, err
		}
		return resp, nil
	}
}

func (i *Image) ask(ctx context.Context, h *host, method, kind, by, bytes string) (
	*http.Response, error) {
	u := h.root.JoinPath(i.at.RepositoryStr(), kind, by)
	if h.of != "" {
		u.RawQuery = url.Values{"ns": {h.of}}.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if bytes != "" {
		req.Header.Set("Range", bytes)
	}
	for _, t := range manifestTypes {
		if kind == "manifests" {
			req.Header.Add("Accept", string(t))
		}
	}
	client := *h.client
	if method == http.MethodHead { // where the registry sends us does not matter
		client.CheckRedirect = func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}
	}
	return client.Do(req)
}

func digestOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}
