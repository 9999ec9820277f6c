package command

import (
	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// registryFlags say where container images may come from.
type registryFlags struct {
	allowed     []string
	credentials string
}

func (r *registryFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&r.allowed, "image-registries", oci.DefaultRegistries,
		"where container images may be pulled from: HOST, HOST:PORT or *.DOMAIN; with a scheme, as "+
			"http://127.0.0.1:5000, at a private address too, and by http:// without TLS")
	f.StringVar(&r.credentials, "image-credentials", "",
		`a file (0600) of what namespaces pull with: {"NAMESPACE": {"auths": {"HOST": {"username": …, `+
			`"password": …}}}} (default: nobody has credentials)`)
}

// apply has a cache pull as the flags say.
func (r *registryFlags) apply(cache *image.Cache) (err error) {
	if cache.Source.Registries, err = oci.ParseRegistries(r.allowed); err != nil {
		return err
	}
	if r.credentials != "" {
		cache.Source.Credentials, err = oci.ReadCredentials(r.credentials)
	}
	return err
}
