package command

import (
	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// registryFlags say where container images may come from.
type registryFlags struct {
	allowed     []string
	credentials string
}

func (r *registryFlags) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&r.allowed, "image-registries", oci.DefaultRegistries,
		"where container images may be pulled from: HOST, HOST:PORT or *.DOMAIN; with a scheme, as "+
			"http://127.0.0.1:5000, at a private address too, and by http:// without TLS")
	f.StringVar(&r.credentials, "image-credentials", "",
		`a file (0600) of what namespaces pull with: {"NAMESPACE": {"auths": {"HOST": {"username": …, `+
			`"password": …}}}} (default: nobody has credentials)`)
	settings.Check(f, func(entry string) error {
		_, err := oci.ParseRegistries([]string{entry})
		return err
	}, "image-registries")
	settings.TakesEffect(f, settings.BySIGHUP, "image-registries", "image-credentials")
}

// apply has a cache pull as the flags say.
func (r *registryFlags) apply(cache *image.Cache) error {
	registries, err := oci.ParseRegistries(r.allowed)
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
