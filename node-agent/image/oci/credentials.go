package oci

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Credentials holds the operator's credentials for registries, by namespace. Other namespaces
// cannot use them.
type Credentials map[string]map[string]authn.AuthConfig // by namespace, then by registry

// ReadCredentials reads a file in docker's form for each namespace:
//
//	{"NAMESPACE": {"auths": {"ghcr.io": {"username": "…", "password": "…"}}}}
func ReadCredentials(file string) (Credentials, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--image-credentials: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("--image-credentials: %w", err)
	}
	if info.Mode().Perm()&0o137 != 0 {
		return nil, fmt.Errorf("--image-credentials: others may read %s (%#o); chmod 0600 it",
			file, info.Mode().Perm())
	}
	var namespaces map[string]struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	content, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err == nil {
		err = json.Unmarshal(content, &namespaces)
	}
	if err != nil {
		return nil, fmt.Errorf("--image-credentials: %s: %w", file, err)
	}
	all := Credentials{}
	for namespace, given := range namespaces {
		all[namespace] = map[string]authn.AuthConfig{}
		for registry, auth := range given.Auths {
			reg, err := name.NewRegistry(registry)
			if err != nil {
				return nil, fmt.Errorf("--image-credentials: %s of %s: %w",
					registry, namespace, err)
			}
			all[namespace][reg.RegistryStr()] = auth
		}
	}
	return all, nil
}

// of returns the namespace's credentials for the registry, and whether it has any.
func (c Credentials) of(namespace, registry string) (authn.Authenticator, bool) {
	auth, have := c[namespace][registry]
	if !have {
		return authn.Anonymous, false
	}
	return authn.FromConfig(auth), true
}
