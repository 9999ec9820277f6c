package oci

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/pelletier/go-toml/v2"
)

// A host is one that has a registry's images: the registry itself, or a mirror of it. Which there
// are, and how they are reached, is in containerd's hosts.toml, which containerd's own code reads.
type host struct {
	root     url.URL // of the API: https://HOST/v2
	of       string  // the registry, where it is a mirror of it
	told     bool    // by name, so it may have a private address
	resolves bool    // it is asked what a tag stands for
	tls      *tls.Config
	header   http.Header

	mu     sync.Mutex
	way    *road
	client *http.Client // once it is connected
}

const hostsFile = "hosts.toml"

// itself returns the host of a registry of which no file says more.
func (r *Registries) itself(registry string) *host {
	return &host{root: url.URL{Scheme: r.schemeTo(registry), Host: registry, Path: usualAPI},
		resolves: true}
}

// hostsOf lists the hosts of a registry in the order in which they are asked.
func (r *Registries) hostsOf(ctx context.Context, registry string) (hosts []*host, err error) {
	itself := r.itself(registry)
	if r.HostsDir == "" {
		return []*host{itself}, nil
	}
	called := registry
	if called == name.DefaultRegistry {
		called = "docker.io"
	}
	dir, err := config.HostDirFromRoot(r.HostsDir)(called)
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, badHosts(r.HostsDir, err)
	}
	if dir == "" {
		return []*host{itself}, nil
	}
	said, err := readHosts(dir)
	if err != nil {
		return nil, err
	}
	there := func(string) (string, error) { return dir, nil }
	all, err := config.ConfigureHosts(ctx,
		config.HostOptions{HostDir: there, DefaultScheme: itself.root.Scheme})(called)
	if err != nil {
		return nil, badHosts(dir, err)
	}
	if len(all) != len(said.Host)+1 {
		return nil, badHosts(dir, errors.New("containerd would not take all of its hosts; a "+
			"capability is pull, resolve or push, and the tables of one host follow one another"))
	}
	for n, a := range all {
		way, plain := a.Client.Transport.(*http.Transport)
		if !plain {
			return nil, badHosts(dir, fmt.Errorf("%s: certificates are for https://, not for "+
				"http://", a.Host))
		}
		if !a.Capabilities.Has(docker.HostCapabilityPull) {
			continue
		}
		h := &host{root: url.URL{Scheme: a.Scheme, Host: a.Host, Path: a.Path}, told: true,
			resolves: a.Capabilities.Has(docker.HostCapabilityResolve),
			tls:      way.TLSClientConfig.Clone(), header: a.Header}
		switch {
		case n < len(said.Host):
			h.of = called
		case said.Server == "":
			h.root, h.told = itself.root, false
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// said holds what hosts.toml says of which hosts there are.
type said struct {
	Server string
	Host   map[string]any
}

func readHosts(dir string) (s said, err error) {
	b, err := os.ReadFile(filepath.Join(dir, hostsFile))
	if errors.Is(err, fs.ErrNotExist) { // only certificates, as Docker has them
		return s, nil
	}
	if err == nil {
		err = toml.Unmarshal(b, &s)
	}
	if err != nil {
		return s, badHosts(dir, err)
	}
	return s, nil
}

func badHosts(dir string, err error) error {
	return ours(fmt.Errorf("--image-hosts: %s: %w", filepath.Join(dir, hostsFile), err))
}

// CheckHosts returns an error if a file below HostsDir cannot be used.
func (r *Registries) CheckHosts(ctx context.Context) error {
	if r.HostsDir == "" {
		return nil
	}
	list, err := os.ReadDir(r.HostsDir)
	if err != nil {
		return fmt.Errorf("--image-hosts: %w", err)
	}
	for _, d := range list {
		if d.IsDir() {
			only := &Registries{told: r.told, HostsDir: r.HostsDir}
			if _, err := only.hostsOf(ctx, registryOf(d.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// registryOf returns the registry that a directory of containerd is of: HOST, or HOST_PORT_.
func registryOf(dir string) string {
	host, is := strings.CutSuffix(dir, "_")
	if at := strings.LastIndex(host, "_"); is && at > 0 {
		return host[:at] + ":" + host[at+1:]
	}
	return dir
}

// connect gets what lets a host answer: a token, if it wants one.
func (i *Image) connect(ctx context.Context, s *Source, allowed *allowed, h *host,
	namespace string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client != nil {
		return nil
	}
	whose := h.root.Host // credentials for another host are its own
	if h.of == "" && sameSite(whose, i.at.RegistryStr()) {
		whose = i.at.RegistryStr()
	}
	auth, secrets, err := allowed.credentials.of(ctx, namespace, whose)
	if err != nil {
		return err
	}
	registries := *allowed.registries
	if h.told {
		registries.told = maps.Clone(registries.told)
		registries.told[dialled(h.root.Host, h.root.Scheme)] = h.root.Scheme
	}
	way := newRoad(&registries, h.root.Host, secrets, func(bytes int64) {
		i.received.Add(bytes)
		s.Fetched(bytes)
	})
	way.its(h.root.Path, h.tls, h.header)
	client, err := i.authorize(ctx, way, h, auth)
	if err != nil {
		way.close()
		return err
	}
	h.way, h.client = way, client
	return nil
}

func (i *Image) authorize(ctx context.Context, way *road, h *host, auth authn.Authenticator) (
	*http.Client, error) {
	var how []name.Option
	if h.root.Scheme == "http" {
		how = append(how, name.Insecure)
	}
	registry, err := name.NewRegistry(h.root.Host, how...)
	if err != nil {
		return nil, refuse(Unusable, "%q is no registry: %w", h.root.Host, err)
	}
	scopes := []string{i.at.Scope(transport.PullScope)}
	authorized, err := transport.NewWithContext(ctx, registry, auth, way, scopes)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: authorized}, nil
}

// close closes the connections to a host.
func (h *host) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.way != nil {
		h.way.close()
	}
}

// passOver has all parts of the image asked for at h first, or at one behind it.
func (i *Image) passOver(h *host) {
	for {
		now := i.first.Load()
		if now != nil && slices.Index(i.hosts, now) >= slices.Index(i.hosts, h) ||
			i.first.CompareAndSwap(now, h) {
			return
		}
	}
}

// after returns the next host that may have what one did not give, and nil behind the last.
func (i *Image) after(ctx context.Context, former *host) *host {
	for n, h := range i.hosts {
		if h != former {
			continue
		}
		for _, next := range i.hosts[n+1:] {
			if i.reach(ctx, next) == nil {
				return next
			}
		}
	}
	return nil
}
