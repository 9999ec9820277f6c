package oci

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// DefaultRegistries are the registries from which a node pulls by default.
var DefaultRegistries = []string{"docker.io", "ghcr.io", "quay.io"}

// Registries holds the registries from which a node may pull. An entry is a host, host:port, or
// *.example.org; the node then uses HTTPS and public addresses only. An entry with a scheme,
// https://HOST[:PORT] or http://HOST[:PORT], may have a private address too, and with http:// the
// node uses no TLS.
type Registries struct {
	names []string          // hosts and patterns
	told  map[string]string // dialled host:port → scheme

	HostsDir string // containerd's hosts.toml of registries; empty: there are none
}

// ParseRegistries reads entries in the form of --image-registries.
func ParseRegistries(entries []string) (*Registries, error) {
	r := &Registries{told: map[string]string{}}
	for _, entry := range entries {
		host, scheme := entry, ""
		if u, err := url.Parse(entry); err == nil && u.Host != "" {
			host, scheme = u.Host, u.Scheme
			if strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment != "" || u.User != nil {
				return nil, badRegistry(entry)
			}
		}
		reg, err := name.NewRegistry(strings.TrimPrefix(host, "*."))
		if err != nil || host == "" || strings.ContainsAny(strings.TrimPrefix(host, "*."), "/*") {
			return nil, badRegistry(entry)
		}
		switch scheme {
		case "":
		case "http", "https":
			r.told[dialled(host, scheme)] = scheme
		default:
			return nil, badRegistry(entry)
		}
		if !strings.HasPrefix(host, "*.") {
			host = reg.RegistryStr()
		}
		r.names = append(r.names, host)
	}
	return r, nil
}

func badRegistry(entry string) error {
	return fmt.Errorf("--image-registries: %q is no registry; give HOST, HOST:PORT, *.DOMAIN, "+
		"https://HOST for one at a private address, http://HOST for one without TLS", entry)
}

// dialled returns the address at which a host is reached by the scheme.
func dialled(host, scheme string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	port := map[string]string{"http": "80", "https": "443"}[scheme]
	return net.JoinHostPort(strings.Trim(host, "[]"), port)
}

// InFull returns ref with its registry, and without its tag if it has a digest too. It returns an
// invalid reference unchanged.
func InFull(ref string) string {
	reference, err := name.ParseReference(ref)
	if err != nil {
		return ref
	}
	return reference.Name()
}

// parse reads a reference whose registry is allowed.
func (r *Registries) parse(ref string) (name.Reference, error) {
	reference, err := name.ParseReference(ref)
	if err != nil {
		return nil, refuse(Unusable,
			"it is neither a runtime of ours nor an OCI reference: %w", err)
	}
	host := reference.Context().RegistryStr()
	if !slices.ContainsFunc(r.names, func(pattern string) bool { return matches(pattern, host) }) {
		return nil, refuse(NotAllowed,
			"%s is not among %s; the operator adds it to --image-registries",
			host, strings.Join(r.names, ", "))
	}
	if r.told[dialled(host, "http")] == "http" {
		return name.ParseReference(ref, name.Insecure)
	}
	return reference, nil
}

func matches(pattern, host string) bool {
	if domain, is := strings.CutPrefix(pattern, "*"); is {
		return strings.HasSuffix(host, domain)
	}
	return pattern == host
}
