package command

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox/qemu"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// nodeFlags are what a node is told.
type nodeFlags struct {
	runDir, stateDir string
	sandbox          *driver
	simStart         time.Duration
	images           string
	registries       registryFlags
	pfs              []string
	vfs              vf.Template
	numVFs           int
	hugePages        bool
	fastiov          string
	memoryMiB        int
	subnet           string
	first            string
	gateway          string
	dns              string
	metrics          string
	group            int // that may open the sockets
	boot             time.Duration
	limits           string
	api              apiFlags
}

const metricsHelp = "where Prometheus finds /metrics and, with an invoker, Grafana its traces by Jaeger's API; empty: nowhere"

// apiFlags are where else than on its Unix socket a node's API is, and by what the two ends know each other there.
type apiFlags struct {
	listen string
	keys   api.Keys
}

func (a *apiFlags) registerKeys(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.keys.Cert, "node-cert", "", "certificate that this side of the node API shows over TCP, PEM")
	f.StringVar(&a.keys.Key, "node-key", "", "its key, PEM")
	f.StringVar(&a.keys.CA, "node-ca", "", "CA that the other side's certificate must be signed by, PEM")
}

func (n *nodeFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&n.runDir, "run-dir", "/run/fastiov", "sockets, leases and sandboxes; on a tmpfs")
	f.StringVar(&n.stateDir, "state-dir", "/var/lib/fastiov", "reports of failed starts, and the API key")
	n.sandbox = &drivers[0]
	f.Var(driverFlag{&n.sandbox}, "sandbox", "what functions run in: "+driversExplained())
	f.DurationVar(&n.simStart, "sim-start", sim.DefaultTotal, "how long a simulated start takes, shared between its stages as in the FastIOV paper; 0: no time at all")
	f.StringVar(&n.images, "images", "", "a directory of images made on another machine by `fastiov image export` (default: build them here)")
	n.registries.register(cmd)
	f.StringSliceVar(&n.pfs, "pf", nil, "SR-IOV devices to use, each by address, driver or netdev (default: the only one)")
	f.IntVar(&n.numVFs, "vfs", 0, "VFs per device (default: as many as it has)")
	f.IntVar(&n.vfs.VLAN, "vlan", 0, "VLAN of the VFs")
	f.IntVar(&n.vfs.MaxRate, "max-rate", 0, "most a VF may send, in Mbit/s")
	f.BoolVar(&n.hugePages, "huge-pages", false, "guest memory from the 2 MiB huge pages set aside on this machine")
	f.StringVar(&n.fastiov, "fastiov", "", "what of fastiov's kernel to use: none, all, or axes as in l=hierarchical,r=1,d=pagecache (default: all, on that kernel)")
	f.IntVar(&n.memoryMiB, "memory", 0, "MiB to give out to sandboxes (default: what is free now, less 512)")
	f.StringVar(&n.subnet, "subnet", "", "network behind the VFs, e.g. 10.0.2.0/24")
	f.StringVar(&n.first, "first-address", "", "address of VF 0; VF n has the n-th after it")
	f.StringVar(&n.gateway, "gateway", "", "gateway of that network")
	f.StringVar(&n.dns, "dns", "", "DNS server of that network")
	f.StringVar(&n.metrics, "metrics", "127.0.0.1:9464", metricsHelp)
	f.StringVar(&n.api.listen, "node-listen", "", "host:port where the node API is served to invokers on other machines, by mutual TLS (default: nowhere)")
	n.api.registerKeys(cmd)
	f.Var(chosen(&n.limits, limitsEnforced, limitsBestEffort), "limits",
		"of sandboxes: enforced, by cgroup v2's controllers of memory and processes, or best-effort,"+
			" by rlimits where those are missing")
	f.DurationVar(&n.boot, "boot-deadline", time.Minute, "how long a sandbox may take to boot")
}

const (
	limitsEnforced   = "enforced"
	limitsBestEffort = "best-effort"
)

// bestEffort tells whether limits may be missing.
func (n *nodeFlags) bestEffort() bool { return n.limits == limitsBestEffort }

// rooms is how many rooms for VMMs are kept ready: as many as there is memory for sandboxes, up to a burst.
func (n *nodeFlags) rooms() (int, error) {
	const burst = 256
	memory, err := n.memoryToGive()
	return min(burst, memory/(qemu.MinMemoryMiB+n.overheadMiB())), err
}

// lock makes the run directory this process's own, before anything is written to it.
func (n *nodeFlags) lock() (unlock func(), err error) {
	if os.Geteuid() != 0 && n.sandbox.root {
		return nil, errors.New("a node needs root, to bind VFs and start VMMs; use sudo, or try --sandbox sim")
	}
	return lockRunDir(n.runDir)
}

func (f *nodeFlags) network() (n startup.Network, err error) {
	if n.Subnet, err = netip.ParsePrefix(f.subnet); err != nil {
		return n, fmt.Errorf("--subnet %q: %w; it is the network behind the VFs, e.g. 10.0.2.0/24", f.subnet, err)
	}
	for _, a := range []struct {
		flag, value string
		to          *netip.Addr
	}{{"first-address", f.first, &n.First}, {"gateway", f.gateway, &n.Gateway}, {"dns", f.dns, &n.DNS}} {
		if *a.to, err = netip.ParseAddr(a.value); err != nil {
			return n, fmt.Errorf("--%s %q: %w", a.flag, a.value, err)
		}
	}
	return n, nil
}
