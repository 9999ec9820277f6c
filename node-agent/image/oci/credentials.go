package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Credentials holds the operator's credentials for registries, by namespace. Other namespaces
// cannot use them.
type Credentials map[string]keys

// keys holds what one namespace pulls with, by registry. A helper is a program in the operator's
// PATH that is asked for each pull, since what it says may expire.
type keys struct {
	auths   map[string]authn.AuthConfig
	helpers map[string]string
	store   string // the helper for registries that the others do not name
}

// ReadCredentials reads a file in docker's form for each namespace:
//
//	{"NAMESPACE": {"auths": {"ghcr.io": {"username": "…", "password": "…"}},
//	               "credHelpers": {"ID.dkr.ecr.eu-west-1.amazonaws.com": "ecr-login"},
//	               "credsStore": "pass"}}
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
		Auths       map[string]authn.AuthConfig
		CredHelpers map[string]string
		CredsStore  string
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
		k := keys{map[string]authn.AuthConfig{}, map[string]string{}, given.CredsStore}
		err := isHelper(k.store)
		if namespace == "" {
			err = errors.New("a namespace has a name: what is pulled in nobody's is everybody's")
		}
		for at, auth := range given.Auths {
			registry, bad := registryIn(at)
			k.auths[registry], err = auth, errors.Join(err, bad)
		}
		for at, helper := range given.CredHelpers {
			registry, bad := registryIn(at)
			k.helpers[registry], err = helper, errors.Join(err, bad, isHelper(helper))
		}
		if err != nil {
			return nil, fmt.Errorf("--image-credentials: %s: %q: %w", file, namespace, err)
		}
		all[namespace] = k
	}
	return all, nil
}

// registryIn reads a registry as docker's configuration has it, which may be a URL.
func registryIn(key string) (string, error) {
	_, host, is := strings.Cut(key, "://")
	if !is {
		host = key
	}
	host, _, _ = strings.Cut(host, "/")
	registry, err := name.NewRegistry(host)
	if err != nil || host == "" {
		return "", fmt.Errorf("%q is no registry", key)
	}
	return registry.RegistryStr(), nil
}

var helperName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func isHelper(name string) error {
	if name != "" && !helperName.MatchString(name) {
		return fmt.Errorf("%q is no credential helper: of docker-credential-NAME give NAME", name)
	}
	return nil
}

// of returns the namespace's credentials for the registry, and whether it has any.
func (c Credentials) of(ctx context.Context, namespace, registry string) (
	auth authn.Authenticator, have bool, err error) {
	k := c[namespace]
	helper, helped := k.helpers[registry]
	if auth, have := k.auths[registry]; have && !helped {
		return authn.FromConfig(auth), true, nil
	}
	if !helped {
		helper = k.store
	}
	if helper == "" {
		return authn.Anonymous, false, nil
	}
	return askHelper(ctx, helper, registry)
}

// How long a helper may take, and what it says where it knows of no credentials.
const (
	helperTime = 30 * time.Second
	notThere   = "credentials not found in native keychain"
	ofIdentity = "<token>" // in the place of a user's name
)

// askHelper asks a helper for the credentials of a registry, by docker's protocol.
func askHelper(ctx context.Context, helper, registry string) (authn.Authenticator, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, helperTime)
	defer cancel()
	program := "docker-credential-" + helper
	if registry == name.DefaultRegistry {
		registry = authn.DefaultAuthKey
	}
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.WaitDelay = time.Second
	cmd.Stdin = strings.NewReader(registry)
	var out bytes.Buffer
	cmd.Stdout = &bounded{&out, 1 << 20}
	err := cmd.Run()
	said := strings.TrimSpace(out.String())
	if err != nil && said == notThere {
		return authn.Anonymous, false, nil
	}
	var known struct{ Username, Secret string }
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &known)
	} else if first, _, _ := strings.Cut(said, "\n"); first != "" {
		err = fmt.Errorf("%w: %.200s", err, first)
	}
	if err != nil {
		return nil, false, refuse(Unreachable, "%s, for %s: %w", program, registry, err)
	}
	auth := authn.AuthConfig{Username: known.Username, Password: known.Secret}
	if known.Username == ofIdentity {
		auth = authn.AuthConfig{IdentityToken: known.Secret}
	}
	return authn.FromConfig(auth), true, nil
}
