// Command oracle serves Knative's resources as a cluster does: by Kubernetes's library of API
// servers and etcd, with Knative's definitions and Knative's own admission. Tests compare with it
// what this product answers, and how fast. No controller runs, so objects stay as they were sent.
//
// It prints its address when it serves, and ends with its standard input.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.opentelemetry.io/otel/trace/noop"
	definitions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	clients "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	generated "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

func main() {
	dir := flag.String("dir", "", "directory of the data")
	from := flag.String("definitions", "", "directory of Knative's definitions")
	as := flag.String("user", "guest", "who every client is")
	flag.Parse()
	if err := serve(*dir, *from, *as); err != nil {
		log.Fatal(err)
	}
}

func serve(dir, from, as string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, err := startStore(filepath.Join(dir, "etcd"))
	if err != nil {
		return err
	}
	defer store.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	o := options.NewCustomResourceDefinitionsServerOptions(io.Discard, io.Discard)
	r := o.RecommendedOptions
	r.Etcd.StorageConfig.Transport.ServerList = []string{store.Config().ListenClientUrls[0].String()}
	r.SecureServing.Listener = listener
	r.SecureServing.BindPort = listener.Addr().(*net.TCPAddr).Port
	r.SecureServing.ServerCert.CertDirectory = dir
	r.Authentication, r.Authorization, r.CoreAPI, r.Admission = nil, nil, nil, nil
	r.Features.EnablePriorityAndFairness = false // nobody shares it
	if err := o.Complete(); err != nil {
		return err
	}
	config, err := configOf(o)
	if err != nil {
		return err
	}
	config.GenericConfig.Authentication.Authenticator = authenticator.RequestFunc(
		func(*http.Request) (*authenticator.Response, bool, error) {
			who := &user.DefaultInfo{Name: as, Groups: []string{user.SystemPrivilegedGroup}}
			return &authenticator.Response{User: who}, true, nil
		})
	config.GenericConfig.AdmissionControl = newKnative(ctx)
	server, err := config.Complete().New(genericapiserver.NewEmptyDelegate())
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.GenericAPIServer.PrepareRun().RunWithContext(ctx) }()
	if err := define(ctx, server.GenericAPIServer.LoopbackClientConfig, from); err != nil {
		return err
	}
	fmt.Printf("https://%s\n", listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return <-ended
}

// configOf returns the server's configuration: the library's, but for what needs a cluster.
func configOf(o *options.CustomResourceDefinitionsServerOptions) (*apiserver.Config, error) {
	r, config := o.RecommendedOptions, genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	err := errors.Join(
		r.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil,
			[]net.IP{net.IPv4(127, 0, 0, 1)}),
		o.ServerRunOptions.ApplyTo(&config.Config), r.ApplyTo(config),
		o.APIEnablement.ApplyTo(&config.Config, apiserver.DefaultAPIResourceConfigSource(),
			apiserver.Scheme))
	if err != nil {
		return nil, err
	}
	types := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generated.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(types, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(types, namer)
	return &apiserver.Config{GenericConfig: config, ExtraConfig: apiserver.ExtraConfig{
		CRDRESTOptionsGetter: options.NewCRDRESTOptionsGetter(*r.Etcd, config.ResourceTransformers,
			config.StorageObjectCountTracker),
		AuthResolverWrapper: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil,
			config.LoopbackClientConfig, noop.NewTracerProvider()),
	}}, nil
}

// startStore starts an etcd that writes each change to its disk before it answers.
func startStore(dir string) (*embed.Etcd, error) {
	at := func() url.URL {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		defer l.Close()
		return url.URL{Scheme: "http", Host: l.Addr().String()}
	}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = dir, "error"
	cfg.ListenClientUrls, cfg.ListenPeerUrls = []url.URL{at()}, []url.URL{at()}
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = cfg.ListenClientUrls, cfg.ListenPeerUrls
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	<-e.Server.ReadyNotify()
	return e, nil
}

// define gives the server Knative's definitions, and returns when all of them are served.
func define(ctx context.Context, config *rest.Config, from string) error {
	client := clients.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions()
	for _, kind := range []string{"service", "configuration", "revision", "route"} {
		text, err := os.ReadFile(filepath.Join(from, kind+".yaml"))
		if err != nil {
			return err
		}
		d := &definitions.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, d); err != nil {
			return err
		}
		for { // the server begins meanwhile
			if _, err = client.Create(ctx, d, metav1.CreateOptions{}); err == nil {
				break
			}
			if ctx.Err() != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
		for established := false; !established; time.Sleep(50 * time.Millisecond) {
			now, err := client.Get(ctx, d.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range now.Status.Conditions {
				established = established || c.Type == definitions.Established &&
					c.Status == definitions.ConditionTrue
			}
		}
	}
	return nil
}
