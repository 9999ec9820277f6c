//go:build cni

package cni_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/cni"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/testbed"
)

// As process 1, this program is all that runs in the guest of a VMM that is not ours.
func TestMain(m *testing.M) {
	if os.Getpid() == 1 {
		fmt.Println("guest:", live(os.Getenv(guestAddress), os.Getenv(guestTo)))
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	testbed.Main(m)
}

// The guest's variables, from its kernel's command line.
const (
	guestAddress = "GUEST_ADDRESS"
	guestTo      = "GUEST_TO"
)

const port = 9

// live sends to a port from the guest's VF, until it cannot.
func live(address, to string) error {
	list, err := os.ReadFile("/modules")
	if err != nil {
		return err
	}
	for _, path := range strings.Fields(string(list)) {
		module, err := os.Open(path)
		if err == nil {
			err = unix.FinitModule(int(module.Fd()), "", 0)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, link := range links {
		if link.Attrs().Flags&net.FlagLoopback != 0 {
			continue
		}
		a, err := netlink.ParseAddr(address)
		if err == nil {
			err = netlink.AddrAdd(link, a)
		}
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", link.Attrs().Name, err)
		}
	}
	for {
		if conn, err := net.Dial("udp", net.JoinHostPort(to, fmt.Sprint(port))); err == nil {
			_, err = io.WriteString(conn, "guest")
			conn.Close()
			if err != nil {
				fmt.Println("guest:", err)
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// initrd makes one from that of our guests, for the drivers, and this program as process 1.
func initrd(t *testing.T, guest image.Boot) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "initrd")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	base, err := os.Open(guest.Initrd)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(file, base)
	w := cpio.NewWriter(file)
	header := &cpio.Header{Name: "init", Mode: cpio.TypeReg | 0o755, Size: int64(len(self))}
	if err = errors.Join(err, w.WriteHeader(header)); err == nil {
		_, err = w.Write(self)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// plugin runs the CNI plugin as a runtime does.
func (n *node) plugin(t *testing.T, command, netns, conf string) []byte {
	t.Helper()
	cmd := exec.Command("/share/" + pluginName)
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=vmm", "CNI_IFNAME=eth0",
		"CNI_PATH=/share", "CNI_NETNS=" + netns}
	cmd.Stdin = strings.NewReader(conf)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return out
}

// masters reports whether a device may access memory.
func masters(t *testing.T, bdf string) bool {
	t.Helper()
	const command, master = 4, 4
	config, err := os.ReadFile(filepath.Join("/sys/bus/pci/devices", bdf, "config"))
	if err != nil || len(config) < command+2 {
		t.Fatalf("%s has a configuration of %d bytes, %v", bdf, len(config), err)
	}
	return binary.LittleEndian.Uint16(config[command:])&master != 0
}

// The machine's own QEMU, as anybody starts it, gets the VF that deviceID names and the plugin's
// result tells of. Its guest is heard by the MAC of the configuration, and the VF comes back reset.
func (n *node) foreignVMM(t *testing.T) {
	container, path, end := box(t, "h")
	defer end()
	ear := n.do(t, adding("h", path))
	to := ear.IPs[0].Address.Addr()
	var heard net.PacketConn
	if err := netns.Inside(container, func() (err error) {
		heard, err = net.ListenPacket("udp", netip.AddrPortFrom(to, port).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer heard.Close()

	const mac = "02:00:00:00:00:0c"
	device := n.pool.Snapshot()[0]
	_, path, end = box(t, "q")
	defer end()
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"fastiov","runDir":%q,
		"deviceID":%q,"mac":%q,"ipam":{"type":"fastiov","ranges":[{"subnet":"10.9.0.0/24"}]}}`,
		n.server.RunDir, device.BDF, mac)
	var result current.Result
	if err := json.Unmarshal(n.plugin(t, "ADD", path, conf), &result); err != nil {
		t.Fatal(err)
	}
	given := result.Interfaces[0]
	if given.PciID != device.BDF || given.Mac != mac {
		t.Fatalf("the plugin's result tells of %+v", given)
	}
	images, err := image.OpenSet(testbed.ImagesDir)
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	vmm := exec.CommandContext(ctx, "qemu-system-x86_64", "-machine", "q35,accel=kvm", "-cpu",
		"host", "-m", "384", "-nodefaults", "-display", "none", "-serial", "stdio", "-kernel",
		images.Guest.Kernel, "-initrd", initrd(t, images.Guest), "-append",
		fmt.Sprintf("console=ttyS0 quiet panic=-1 %s=%s %s=%s", guestAddress,
			result.IPs[0].Address.String(), guestTo, to),
		"-device", "vfio-pci,host="+given.PciID)
	vmm.Stdout, vmm.Stderr = &said, &said
	if err := vmm.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = vmm.Wait(); close(ended) }()
	go func() { <-ended; heard.Close() }()
	_ = heard.SetReadDeadline(time.Now().Add(5 * time.Minute))
	_, from, err := heard.ReadFrom(make([]byte, 16))
	if err != nil {
		kill()
		<-ended
		t.Fatalf("the guest was not heard: %v; it said:\n%s", err, &said)
	}
	if err := netns.Inside(container, func() error {
		known, err := netlink.NeighList(0, netlink.FAMILY_V4)
		for _, k := range known {
			if at, _, _ := net.SplitHostPort(from.String()); k.IP.String() == at {
				t.Logf("heard %s by %s", at, k.HardwareAddr)
				if k.HardwareAddr.String() != mac {
					t.Errorf("its MAC on the wire is not %s", mac)
				}
				return err
			}
		}
		t.Errorf("%s is not among the neighbours %v", from, known)
		return err
	}); err != nil {
		t.Error(err)
	}
	if !masters(t, given.PciID) {
		t.Error("a VF that a guest uses does not master the bus: the check below can show nothing")
	}
	kill()
	<-ended
	n.plugin(t, "DEL", path, conf)
	n.do(t, cni.Request{Command: cni.Del, Attachment: cni.Attachment{"net", "h", "eth0"}})
	n.idle(t)
	if masters(t, given.PciID) {
		t.Error("the VF came back without a reset")
	}
	n.hasMAC(t, device.BDF, device.MAC)
}

// hasMAC checks which MAC a card lets a VF have.
func (n *node) hasMAC(t *testing.T, bdf, want string) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		for _, v := range link.Attrs().Vfs {
			at, err := os.Readlink(filepath.Join("/sys/class/net", link.Attrs().Name,
				"device", fmt.Sprint("virtfn", v.ID)))
			if err == nil && filepath.Base(at) == bdf {
				if v.Mac.String() != want {
					t.Errorf("VF %s has the MAC %s of its former holder, not %s", bdf, v.Mac, want)
				}
				return
			}
		}
	}
	t.Errorf("no card has VF %s", bdf)
}

const pluginName = "fastiov-cni"
