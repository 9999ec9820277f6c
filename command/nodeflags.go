package command

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/sandbox/containerd"
	"github.com/fastiov/fastiov/node-agent/sandbox/qemu"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// nodeFlags hold the settings of a node.
type nodeFlags struct {
	runDir, stateDir string
	sandbox          *driver
	simStart         time.Duration
	simStages        []sim.Step // of a simulated start; nil: as in the paper
	images           string
	guestKernel      string
	containerd       string // address
	handlers         []string
	registries       registryFlags
	pullPolicy       image.Policy
	pfs              []string
	vfs              vf.Template
	numVFs           int
	scon             bool // the bridge has an express path
	netdevVFs        int
	hugePages        bool
	fastiov          string
	zeroesAhead      bool // memory, for an arm of which that is a part
	memoryMiB        int
	subnet           netip.Prefix
	first            netip.Addr
	gateway          netip.Addr
	dns              netip.Addr
	metrics          string
	group            int // that may open the sockets
	boot             time.Duration
	limits           string
	api              apiFlags
}

const metricsHelp = "where Prometheus finds /metrics and, with an invoker, Grafana its traces by" +
	" Jaeger's API; empty: nowhere"

// certificates says how a change of a key takes effect that names a file of a certificate.
const certificates = "by a restart, and what is new in that file at the next connection"

// apiFlags say where a node's API is beside its Unix socket, and how the two ends know each other
// there.
type apiFlags struct {
	listen string
	keys   api.Keys
}

func (a *apiFlags) keyFlags(f *pflag.FlagSet) {
	f.StringVar(&a.keys.Cert, "node-cert", "",
		"certificate that this side of the node API shows over TCP, PEM")
	f.StringVar(&a.keys.Key, "node-key", "", "its key, PEM")
	f.StringVar(&a.keys.CA, "node-ca", "",
		"CA that the other side's certificate must be signed by, PEM")
	settings.TakesEffect(f, certificates, "node-cert", "node-key", "node-ca")
}

func (n *nodeFlags) register(cmd *cobra.Command) { settings.Add(cmd, nodeSection, n.flags) }

func (n *nodeFlags) flags(f *pflag.FlagSet) {
	runDirFlag(f, &n.runDir)
	f.StringVar(&n.stateDir, "state-dir", usualStateDir,
		"reports of failed starts, and the API key")
	n.sandbox = &drivers[0]
	f.Var(driverFlag{&n.sandbox}, "sandbox", "what functions run in: "+driversExplained())
	f.DurationVar(&n.simStart, "sim-start", sim.DefaultTotal,
		"how long a simulated start takes, shared between its stages as in the FastIOV paper;"+
			" 0: no time at all")
	f.StringVar(&n.images, "images", "",
		"a directory of images made on another machine by `fastiov image export`"+
			" (default: build them here)")
	f.Var(guestKernel(&n.guestKernel), "guest-kernel", guestKernelHelp)
	f.StringVar(&n.containerd, "containerd", "", "socket of the containerd that runs containers"+
		" (default: the one at "+containerd.UsualAddress+", or else one that the agent starts)")
	f.StringSliceVar(&n.handlers, "runtime-handler", []string{"runc"}, "what containerd runs"+
		" containers by: runc, crun, youki, runsc or kata, the path of a program like runc, or a"+
		" containerd runtime; of several, functions may name one, and the others have the first")
	n.registries.flags(f)
	f.Var(&n.pullPolicy, "image-pull-policy", "when a registry is asked again for a tag whose "+
		"image is here: Always, IfNotPresent or Never, as in Kubernetes, or how old its last answer may be")
	f.StringSliceVar(&n.pfs, "pf", nil,
		"SR-IOV devices to use, each by address, driver or netdev (default: the only one)")
	f.IntVar(&n.numVFs, "vfs", 0, "VFs per device (default: as many as it has)")
	f.IntVar(&n.netdevVFs, "netdev-vfs", 0,
		"how many of them, the last of each device, are kept as network interfaces for containers")
	f.IntVar(&n.vfs.VLAN, "vlan", 0, "VLAN of the VFs")
	f.IntVar(&n.vfs.MaxRate, "max-rate", 0, "most a VF may send, in Mbit/s")
	f.BoolVar(&n.hugePages, "huge-pages", false,
		"guest memory from the 2 MiB huge pages set aside on this machine")
	f.StringVar(&n.fastiov, "fastiov", "", "how microVMs are started: a named arm, as none or all,"+
		" or axes as in l=hierarchical,r=1 or all,r=0 (default: all on fastiov's kernel, else none;"+
		" tap where no network card has SR-IOV)")
	settings.Check(f, isArm, "fastiov")
	f.IntVar(&n.memoryMiB, "memory", 0,
		"MiB to give out to sandboxes (default: what is free now, less 512)")
	f.TextVar(&n.subnet, "subnet", netip.Prefix{}, "network behind the VFs, e.g. 10.0.2.0/24;"+
		" or behind the bridge (default there: one that this machine has no route to)")
	f.TextVar(&n.first, "first-address", netip.Addr{},
		"address of VF 0; VF n has the n-th after it")
	f.TextVar(&n.gateway, "gateway", netip.Addr{}, "gateway of that network")
	f.TextVar(&n.dns, "dns", netip.Addr{}, "DNS server of that network")
	f.BoolVar(&n.scon, "scon", false, "send packets of sandboxes on the bridge the express path,"+
		" past its rules where these change nothing; conntrack then tolerates gaps in TCP"+
		" (docs/scon.md)")
	f.StringVar(&n.metrics, "metrics", "127.0.0.1:9464", metricsHelp)
	settings.Check(f, isAddressOrSocket, "metrics")
	f.StringVar(&n.api.listen, "node-listen", "", "host:port where the node API is served to"+
		" invokers on other machines, by mutual TLS (default: nowhere)")
	settings.Check(f, isAddress, "node-listen")
	n.api.keyFlags(f)
	f.Var(chosen(&n.limits, limitsEnforced, limitsBestEffort), "limits",
		"of sandboxes: enforced, by cgroup v2's controllers of memory and processes, or best-effort,"+
			" by rlimits where those are missing")
	f.DurationVar(&n.boot, "boot-deadline", time.Minute, "how long a sandbox may take to boot")
}

const guestKernelHelp = "of guests: debian, Debian's, or lean, fastiov's own, compiled first if" +
	" need be"

// bootKernel names the kernel that guests boot, or "" where there are none.
func (n *nodeFlags) bootKernel() string {
	if !n.sandbox.guest {
		return ""
	}
	return n.guestKernel
}

func guestKernel(kernel *string) choice { return chosen(kernel, image.GuestKernels()...) }

// isArm refuses what names no way to start a microVM. An empty text is the default.
func isArm(text string) error {
	if text == "" {
		return nil
	}
	_, err := arm.Parse(text)
	return err
}

const (
	limitsEnforced   = "enforced"
	limitsBestEffort = "best-effort"
)

// bestEffort reports whether limits may be missing.
func (n *nodeFlags) bestEffort() bool { return n.limits == limitsBestEffort }

// rooms returns how many rooms for VMMs are kept ready: as many as there is memory for sandboxes,
// but no more than a burst needs.
func (n *nodeFlags) rooms() (int, error) {
	const burst = 256
	memory, err := n.memoryToGive()
	return min(burst, memory/(qemu.MinMemoryMiB+n.overheadMiB())), err
}

// lock makes the run directory this process's own, before anything is written to it.
func (n *nodeFlags) lock() (unlock func(), err error) {
	if os.Geteuid() != 0 && n.sandbox.root {
		return nil, errors.New(
			"a node needs root, to bind VFs and start VMMs; use sudo, or try --sandbox sim")
	}
	return lockRunDir(n.runDir)
}

// network returns the network behind the VFs; all of its settings must be given.
func (n *nodeFlags) network() (startup.Network, error) {
	if !n.subnet.IsValid() {
		return startup.Network{}, errors.New("--subnet is missing;" +
			" it is the network behind the VFs, e.g. 10.0.2.0/24")
	}
	for _, a := range []struct {
		flag    string
		address netip.Addr
	}{{"first-address", n.first}, {"gateway", n.gateway}, {"dns", n.dns}} {
		if !a.address.IsValid() {
			return startup.Network{}, fmt.Errorf(
				"--%s is missing; it is an address of the network %s", a.flag, n.subnet)
		}
	}
	return startup.Network{Subnet: n.subnet, First: n.first, Gateway: n.gateway, DNS: n.dns}, nil
}
