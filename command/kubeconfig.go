package command

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	kubeconfig "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"

	"github.com/fastiov/fastiov/invoker/openwhisk"
)

// kubeconfigCmd prints what kubectl and kn need to speak to the invoker of this machine, or to that
// in the testbed.
func kubeconfigCmd() *cobra.Command {
	var stateDir, keyFrom, listen string
	cmd := &cobra.Command{Use: "kubeconfig",
		Short: "Print the configuration with which kubectl and kn speak to this machine's invoker",
		Args:  cobra.NoArgs}
	runDir := ofNode(cmd)
	f := cmd.Flags()
	f.StringVar(&stateDir, "state-dir", usualStateDir, "where the invoker keeps its API key")
	f.StringVar(&keyFrom, "key-file", "", "the file with the key of a user, - is standard input"+
		" (default: the key that the invoker was started with)")
	f.StringVar(&listen, "listen", "",
		"the invoker's listen address (default: that of `fastiov up`)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		served := []string{listen}
		var err error
		if listen == "" {
			served, err = readListen(*runDir)
		}
		var key string
		switch {
		case err == nil:
			key, err = keyOf(cmd.InOrStdin(), keyFrom, stateDir, served)
		case !cmd.Flags().Changed("run-dir") && testbedIsUp():
			served = []string{strings.TrimPrefix(awayURL, "http://")}
			if keyFrom == "" {
				key, err = keyInTestbed(cmd.Context())
			} else {
				key, err = keyOf(cmd.InOrStdin(), keyFrom, stateDir, served)
			}
		}
		if err != nil {
			return err
		}
		text, err := kubeconfigOf(cmd.Context(), reachable(served[0]), key)
		if err == nil {
			_, err = cmd.OutOrStdout().Write(text)
		}
		return err
	}
	return cmd
}

func keyOf(in io.Reader, from, stateDir string, served []string) (string, error) {
	switch from {
	case "":
		key, err := openwhisk.LoadKey(served[0], keyFile(stateDir), served[1:]...)
		return key.String(), err
	case "-":
		content, err := io.ReadAll(io.LimitReader(in, 4<<10))
		return strings.TrimSpace(string(content)), err
	}
	content, err := os.ReadFile(from)
	return strings.TrimSpace(string(content)), err
}

// reachable returns an address of this machine for one that stands for all of them.
func reachable(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsUnspecified() {
		return address
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port()).String()
}

// kubeconfigOf has the invoker show its certificate and say which namespace the key opens.
func kubeconfigOf(ctx context.Context, address, key string) ([]byte, error) {
	const within = 10 * time.Second
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: within},
		Config: &tls.Config{InsecureSkipVerify: true}} // what it shows is what clients will trust
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("the invoker at %s speaks no TLS: %w", address, err)
	}
	defer conn.Close()
	shown := conn.(*tls.Conn).ConnectionState().PeerCertificates
	if len(shown) == 0 {
		return nil, errors.New("the invoker shows no certificate")
	}
	namespace, err := namespaceOf(ctx, conn, key)
	if err != nil {
		return nil, err
	}
	const name = "fastiov"
	return yaml.Marshal(kubeconfig.Config{
		Kind: "Config", APIVersion: "v1", CurrentContext: name,
		Clusters: []kubeconfig.NamedCluster{{Name: name, Cluster: kubeconfig.Cluster{
			Server: "https://" + address,
			CertificateAuthorityData: pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: shown[0].Raw}),
		}}},
		AuthInfos: []kubeconfig.NamedAuthInfo{{Name: namespace,
			AuthInfo: kubeconfig.AuthInfo{Token: key}}},
		Contexts: []kubeconfig.NamedContext{{Name: name, Context: kubeconfig.Context{
			Cluster: name, AuthInfo: namespace, Namespace: namespace}}},
	})
}

// namespaceOf asks, over a connection, for the namespace that a key opens.
func namespaceOf(ctx context.Context, conn net.Conn, key string) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
	ask, err := http.NewRequestWithContext(
		ctx, http.MethodGet, "http://127.0.0.1/api/v1/namespaces", nil)
	if err != nil {
		return "", err
	}
	ask.Header.Set("Authorization", "Bearer "+key)
	answer, err := client.Do(ask)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var list struct {
		Message string
		Items   []struct{ Metadata struct{ Name string } }
	}
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
		return "", err
	}
	if len(list.Items) == 0 {
		return "", fmt.Errorf("the invoker does not take the key: %s", list.Message)
	}
	return list.Items[0].Metadata.Name, nil
}
