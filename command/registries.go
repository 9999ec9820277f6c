package command

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// registryFlags say where container images may come from.
type registryFlags struct {
	allowed     []string
	credentials string
	hosts       string
}

func (r *registryFlags) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&r.allowed, "image-registries", oci.DefaultRegistries,
		"where container images may be pulled from: HOST, HOST:PORT or *.DOMAIN; with a scheme, as "+
			"http://127.0.0.1:5000, at a private address too, and by http:// without TLS")
	f.StringVar(&r.credentials, "image-credentials", "",
		`a file (0600) of what namespaces pull with, each in docker's form: {"NAMESPACE": `+
			`{"auths": {"HOST": {"username": …, "password": …}}, "credHelpers": {"HOST": "HELPER"}}} `+
			`(default: nobody has credentials)`)
	f.StringVar(&r.hosts, "image-hosts", "", "containerd's directory of mirrors, certificates and "+
		"ways to registries, as /etc/containerd/certs.d: HOST/hosts.toml (default: none are read)")
	settings.Check(f, func(entry string) error {
		_, err := oci.ParseRegistries([]string{entry})
		return err
	}, "image-registries")
	settings.TakesEffect(f, settings.BySIGHUP, "image-registries", "image-credentials",
		"image-hosts")
}

// apply has a cache pull as the flags say.
func (r *registryFlags) apply(cache *image.Cache) error {
	registries, err := oci.ParseRegistries(r.allowed)
	if err == nil {
		registries.HostsDir = r.hosts
		err = registries.CheckHosts(context.Background())
	}
	if err != nil {
		return err
	}
	var credentials oci.Credentials
	if r.credentials != "" {
		if credentials, err = oci.ReadCredentials(r.credentials); err != nil {
			return err
		}
	}
	cache.Source.Allow(registries, credentials)
	return nil
}
