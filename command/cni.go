package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/beside"
	"github.com/fastiov/fastiov/node-agent/cni"
	"github.com/fastiov/fastiov/node-agent/cni/attach"
)

// serveCNI answers plugins, which run as root. Containers outlive the agent, as sandboxes do.
func (n *node) serveCNI(runDir string) error {
	if n.agent.VFs == nil {
		return nil
	}
	listener, err := listenLocal(filepath.Join(runDir, cni.Socket), nobodyElse)
	if err != nil {
		return err
	}
	server := &attach.Server{Pool: n.agent.VFs, Wires: attach.Kernel(), Ready: n.agent.Ready,
		RunDir: runDir, Log: n.log}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener); err != nil {
			n.log.Error("CNI", "err", err)
		}
	}()
	n.onStop(func() {
		listener.Close()
		<-served
	})
	return nil
}

// cniCmd puts the CNI plugin where container runtimes look for it, and takes it away.
func cniCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "cni", Short: "Give containers of other runtimes VFs of this node"}
	cmd.AddCommand(cniInstall(), cniUninstall())
	return cmd
}

// A cniPlace holds the folders where a runtime looks for plugins and their configurations.
type cniPlace struct{ bin, conf, name string }

func (p *cniPlace) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.bin, "bin-dir", "/opt/cni/bin", "where the runtime looks for plugins")
	f.StringVar(&p.conf, "conf-dir", "/etc/cni/net.d", "where it looks for configurations")
	f.StringVar(&p.name, "name", "fastiov", "of the network, and of its file")
}

func (p *cniPlace) plugin() string   { return filepath.Join(p.bin, "fastiov") }
func (p *cniPlace) conflist() string { return filepath.Join(p.conf, "10-"+p.name+".conflist") }

func cniInstall() *cobra.Command {
	var place cniPlace
	var subnets []string
	var driver string
	cmd := &cobra.Command{Use: "install", Args: cobra.NoArgs,
		Short: "Write the CNI plugin and a configuration that has runtimes use it"}
	place.register(cmd)
	runDir := runDirOf(cmd)
	cmd.Flags().StringArrayVar(&subnets, "subnet", nil, "network of the containers, as in"+
		" 10.1.0.0/24; once for IPv4 and once for IPv6. Those of a card's nodes need --first apart")
	first := cmd.Flags().StringArray("first", nil, "address of VF 0 in the subnet in that place"+
		" (default: its third)")
	cmd.Flags().StringVar(&driver, "driver", "netdev",
		"netdev, or vfio for runtimes that hand VFs to VMMs")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ranges, err := rangesOf(subnets, *first)
		if err != nil {
			return err
		}
		text, err := conflist(place.name, *runDir, driver, ranges)
		if err != nil {
			return err
		}
		old, err := os.ReadFile(place.conflist())
		if err == nil && !bytes.Equal(old, text) {
			return fmt.Errorf("%s says something else already; `fastiov cni uninstall` removes it",
				place.conflist())
		}
		if err := installPlugin(cmd, place.plugin()); err != nil {
			return err
		}
		if err := writeWhole(place.conflist(), bytes.NewReader(text), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "wrote %s and %s\n", place.plugin(), place.conflist())
		return nil
	}
	return cmd
}

func runDirOf(cmd *cobra.Command) *string {
	dir := new(string)
	runDirFlag(cmd.Flags(), dir)
	return dir
}

func rangesOf(subnets, first []string) (ranges []cni.Range, err error) {
	if len(first) > len(subnets) {
		return nil, errors.New("there are more --first than --subnet")
	}
	for i, text := range subnets {
		var r cni.Range
		if r.Subnet, err = netip.ParsePrefix(text); err == nil && i < len(first) {
			r.First, err = netip.ParseAddr(first[i])
		}
		if err == nil {
			err = r.Fill()
		}
		if err != nil {
			return nil, fmt.Errorf("--subnet %s: %w", text, err)
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// conflist returns a configuration for runtimes. Without ranges, interfaces have no addresses.
func conflist(name, runDir, driver string, ranges []cni.Range) ([]byte, error) {
	plugin := map[string]any{"type": "fastiov", "driver": driver,
		"capabilities": map[string]bool{"mac": true, "deviceID": true, "CNIDeviceInfoFile": true}}
	if runDir != usualRunDir {
		plugin["runDir"] = runDir
	}
	if len(ranges) > 0 {
		var routes []cni.Route
		for _, r := range ranges {
			everywhere := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if r.Subnet.Addr().Is6() {
				everywhere = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
			routes = append(routes, cni.Route{Dst: everywhere, GW: r.Gateway})
		}
		plugin["ipam"] = map[string]any{"type": "fastiov", "ranges": ranges, "routes": routes}
	}
	text, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.1.0", "name": name, "plugins": []any{plugin},
	}, "", "  ")
	return append(text, '\n'), err
}

func installPlugin(cmd *cobra.Command, to string) error {
	plugin, err := beside.CNI.Open(cmd.Context())
	if err != nil {
		return err
	}
	defer plugin.Close()
	return writeWhole(to, plugin, 0o755)
}

// writeWhole replaces a file, which others may be reading or executing.
func writeWhole(path string, from io.Reader, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".fastiov-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = io.Copy(f, from)
	if err := errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}

func cniUninstall() *cobra.Command {
	var place cniPlace
	cmd := &cobra.Command{Use: "uninstall", Args: cobra.NoArgs,
		Short: "Remove what `cni install` wrote; containers keep their VFs until they end"}
	place.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, file := range []string{place.conflist(), place.plugin()} {
			err := os.Remove(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "removed", file)
		}
		return nil
	}
	return cmd
}
