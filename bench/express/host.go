package express

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/netpath/scon"
)

// An Arm is one way from a program to the network.
type Arm struct {
	Name  string `json:"name"`
	About string `json:"about"`

	own       bool // the program is the host's own, and in no container
	express   bool
	byAge     bool
	flowtable bool
	rules     int // that no packet matches, before those that accept what is established
	longer    int // instructions more, before the express path's own
}

// Arms are all ways. Ratios are to the first, and to the second.
var Arms = []Arm{
	{Name: Native, About: "a program of the host itself", own: true},
	{Name: Bridge, About: "a container, by bridge and NAT under Docker's rules"},
	{Name: Express, About: "the same with fastiov's express path", express: true},
	{Name: Paper, About: "the same with entries that hold by age alone, the paper's design",
		express: true, byAge: true},
	{Name: Flowtable, About: "by a flowtable of nftables that has the container's port, too",
		flowtable: true},
	{Name: "hooked", About: "a program of a host that has the express path", own: true,
		express: true},
	{Name: "bridge-1000", About: "by bridge and NAT, with 1,000 rules more", rules: 1000},
	{Name: "express-1000", About: "the express path, with 1,000 rules more", rules: 1000,
		express: true},
	{Name: Longer, About: "the express path with 100 instructions more a packet, a control",
		express: true, longer: 100},
}

// Names of arms.
const (
	Native    = "native"
	Bridge    = "bridge"
	Express   = "express"
	Paper     = "paper"
	Flowtable = "flowtable"
	Longer    = "express+100"
)

// A host is the network namespace of this process.
//
//	containers eth0 10.9.0.2… ═ p0…, br0 10.9.0.1, host, nic 198.18.0.2 ═ wire 198.18.0.1 server
type host struct {
	Arm
	containers []*os.File
	server     *os.File
	scon       *scon.Scon
	cpu        int
	ksoftirqd  int32 // its clock
	dir        string
	programs   map[string]*os.Process
	links      []link.Link
	made       []time.Time // when a load made its few connections
}

const containers = 4

var (
	serverAddr = netip.MustParseAddr("198.18.0.1")
	hostAddr   = netip.MustParseAddr("198.18.0.2")
)

// newHost makes the host of an arm, in this process's network namespace, which nobody else uses.
func newHost(arm Arm) (_ *host, err error) {
	h := &host{Arm: arm, programs: map[string]*os.Process{}}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if err := h.stayOnOneCPU(); err != nil {
		return nil, err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, os.NewSyscallError("mount", err)
	}
	if h.dir, err = os.MkdirTemp("", "fastiov-bench-scon-"); err != nil {
		return nil, err
	}
	if err := h.wire(); err != nil {
		return nil, fmt.Errorf("a host in a network namespace: %w", err)
	}
	restore := exec.Command("iptables-restore")
	restore.Stdin = strings.NewReader(rules(arm.rules))
	if out, err := restore.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("rules as Docker's: %w: %s", err, out)
	}
	if arm.flowtable {
		return h, h.offload()
	}
	if arm.express {
		h.scon, err = scon.Attach(scon.Config{Bridge: "br0", Uplinks: []string{"nic"},
			Records: filepath.Join(h.dir, "records"), Pins: filepath.Join(h.dir, "bpf", "scon"),
			Settings: true, ByAge: arm.byAge, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		if err != nil {
			return nil, fmt.Errorf("%w the express path: %w", errMissing, err)
		}
	}
	if arm.longer > 0 {
		return h, h.lengthen()
	}
	return h, nil
}

func (h *host) close() {
	for _, p := range h.programs {
		_ = p.Kill()
		_, _ = p.Wait()
	}
	if h.scon != nil {
		h.scon.Close()
	}
	if h.dir == "" {
		return
	}
	_ = unix.Unmount(filepath.Join(h.dir, "bpf"), 0)
	_ = os.RemoveAll(h.dir)
}

// stayOnOneCPU keeps this process on the last CPU that it may use: the softirqs of what it sends
// run there, too. Threads wait in the kernel without the knowledge of Go's scheduler, so there have
// to be more of its processors than CPUs, and no garbage collection that waits for them.
func (h *host) stayOnOneCPU() error {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	for cpu := range len(may) * 64 {
		if may.IsSet(cpu) {
			h.cpu = cpu
		}
	}
	one.Set(h.cpu)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		if err := unix.SchedSetaffinity(id, &one); err != nil && !errors.Is(err, unix.ESRCH) {
			return os.NewSyscallError("sched_setaffinity", err)
		}
	}
	runtime.GOMAXPROCS(16)
	debug.SetGCPercent(-1)
	h.ksoftirqd, err = ksoftirqd(h.cpu)
	return err
}

// wire makes the devices and addresses.
func (h *host) wire() (err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = "br0"
	if err := errors.Join(netlink.LinkSetUp(lo), setting("ipv6/conf/default/disable_ipv6", "1"),
		netlink.LinkAdd(bridge), address(bridge, "10.9.0.1/24")); err != nil {
		return err
	}
	for n := range containers {
		port := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0"}
		port.Name, port.MasterIndex = fmt.Sprintf("p%d", n), bridge.Index
		container, err := pair(port, fmt.Sprintf("10.9.0.%d/24", n+2), "10.9.0.1")
		if err != nil {
			return err
		}
		h.containers = append(h.containers, container)
	}
	nic := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "wire"}
	nic.Name = "nic"
	if h.server, err = pair(nic, serverAddr.String()+"/24", ""); err != nil {
		return err
	}
	return errors.Join(address(nic, hostAddr.String()+"/24"),
		netlink.RouteAdd(&netlink.Route{LinkIndex: nic.Index, Gw: serverAddr.AsSlice()}),
		setting("ipv4/ip_forward", "1"))
}

// pair makes a veth with its other end in a new namespace, under an address.
func pair(veth *netlink.Veth, as, gateway string) (*os.File, error) {
	other, err := netns.New()
	if err != nil {
		return nil, err
	}
	veth.PeerNamespace = netlink.NsFd(other.Fd())
	if err := errors.Join(netlink.LinkAdd(veth), netlink.LinkSetUp(veth)); err != nil {
		return nil, err
	}
	return other, netns.Inside(other, func() error {
		peer, err := netlink.LinkByName(veth.PeerName)
		if err != nil {
			return err
		}
		// Connections by the ten thousand want ports.
		if err := errors.Join(address(peer, as),
			setting("ipv4/ip_local_port_range", "1024 65535")); err != nil || gateway == "" {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: peer.Attrs().Index,
			Gw: net.ParseIP(gateway)})
	})
}

func address(device netlink.Link, as string) error {
	parsed, err := netlink.ParseAddr(as)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(device, parsed), netlink.LinkSetUp(device))
}

func setting(name, value string) error {
	err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
	if errors.Is(err, os.ErrNotExist) && strings.HasPrefix(name, "ipv6/") {
		return nil
	}
	return err
}

// offload has nftables forward what is established by its flowtable.
func (h *host) offload() error {
	devices := []string{"nic"}
	for n := range containers {
		devices = append(devices, fmt.Sprintf("p%d", n))
	}
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(`table inet fast {
	flowtable entries { hook ingress priority 0; devices = { ` + strings.Join(devices, ", ") + ` }; }
	chain forward {
		type filter hook forward priority -1;
		meta l4proto { tcp, udp } ct state established flow add @entries
	}
}`)
	if out, err := nft.CombinedOutput(); err != nil {
		said, _, _ := strings.Cut(string(out), "\n")
		return fmt.Errorf("%w a flowtable of nftables: %s", errMissing, said)
	}
	return nil
}

// lengthen has each packet that comes to the host pass so many instructions more.
func (h *host) lengthen() error {
	var body asm.Instructions
	for range h.longer - 2 {
		body = append(body, asm.Add.Imm(asm.R0, 1))
	}
	const next = -1
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: append(append(asm.Instructions{asm.Mov.Imm(asm.R0, 0)}, body...),
			asm.Mov.Imm(asm.R0, next), asm.Return())})
	if err != nil {
		return fmt.Errorf("a program of %d instructions: %w", h.longer, err)
	}
	for _, name := range []string{"nic", "p0"} {
		device, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: device.Index, Program: program,
			Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
		if err != nil {
			return fmt.Errorf("attach at %s: %w", name, err)
		}
		h.links = append(h.links, l)
	}
	return nil
}

// errMissing is of what this machine or its kernel has not.
var errMissing = errors.New("this machine lacks")

// rules returns Docker's rules for a host with one published port, with more of the user's own.
func rules(more int) string {
	var mine strings.Builder
	for n := range more {
		fmt.Fprintf(&mine, "-A DOCKER-USER -s 203.0.%d.%d/32 -j DROP\n", n/250, n%250+1)
	}
	return `*raw
:PREROUTING ACCEPT
-A PREROUTING -d 10.9.0.2/32 ! -i br0 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT
:OUTPUT ACCEPT
:POSTROUTING ACCEPT
:DOCKER -
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 10.9.0.0/24 ! -o br0 -j MASQUERADE
-A DOCKER ! -i br0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.9.0.2:80
COMMIT
*filter
:INPUT ACCEPT
:FORWARD DROP
:DOCKER -
:DOCKER-BRIDGE -
:DOCKER-CT -
:DOCKER-FORWARD -
:DOCKER-ISOLATION-STAGE-1 -
:DOCKER-ISOLATION-STAGE-2 -
:DOCKER-USER -
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER -d 10.9.0.2/32 ! -i br0 -o br0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER ! -i br0 -o br0 -j DROP
-A DOCKER-BRIDGE -o br0 -j DOCKER
-A DOCKER-CT -o br0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i br0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i br0 ! -o br0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o br0 -j DROP
` + mine.String() + `-A DOCKER-USER -j RETURN
COMMIT
`
}
