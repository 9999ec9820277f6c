package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// A world is two network namespaces: that of a guest, whose VF is one end of a veth, and the
// network behind it, with a gateway (.1), a name server (.3) and servers:
//
//	guest: gate0, vf ── veth ── peer: 198.18.0.1, 198.18.0.3, fd00::1, fd00::3; 203.0.113.9 beyond
//
// The servers count what reaches them.
type world struct {
	t           *testing.T
	guest, peer int // namespaces
	talker      string
	uring       bool // the machine lets programs use io_uring

	mu       sync.Mutex
	seen     map[string]int // lines and names, by how often they came
	backward int            // datagrams that came after a later one
	last     map[string]int // number of the latest datagram, by its stream
}

const (
	linesPort, datagramsPort, earlyPort = 7000, 7001, 7002
	beyond                              = "203.0.113.9" // reached by the gateway
)

// large names a datagram that leaves in fragments.
var large = "-large-" + strings.Repeat("x", 4000)

var gateNICs = map[string]*wire.NIC{
	"IPv4": {MAC: vethMAC, Address: netip.MustParsePrefix("198.18.0.2/24"),
		Gateway: netip.MustParseAddr("198.18.0.1"), DNS: netip.MustParseAddr("198.18.0.3")},
	"IPv6": {MAC: vethMAC, Address: netip.MustParsePrefix("fd00::2/64"),
		Gateway: netip.MustParseAddr("fd00::1"), DNS: netip.MustParseAddr("fd00::3")},
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	w := &world{t: t, seen: map[string]int{}, last: map[string]int{}}
	if u, err := openUring(); err == nil {
		u.close()
		w.uring = true
	} else {
		t.Logf("without io_uring: %v", err)
	}
	for _, ns := range []*int{&w.guest, &w.peer} {
		fd, err := newNamespace()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		*ns = fd
	}
	w.must(w.in(w.peer, w.serve))
	return w
}

// newNamespace makes one like a guest's: replies may come by another link than packets to their
// sender would leave by.
func newNamespace() (fd int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return
		}
		if err = errors.Join(loopbackUp(), takeFromAnyLink()); err == nil {
			fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
	}()
	<-done
	return fd, err
}

func takeFromAnyLink() (err error) {
	for _, links := range []string{"all", "default"} {
		path := "/proc/sys/net/ipv4/conf/" + links + "/rp_filter"
		err = errors.Join(err, os.WriteFile(path, []byte("0"), 0))
	}
	return err
}

// in does something on a thread of that namespace. Sockets stay in it.
func (w *world) in(ns int, do func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = unix.Setns(ns, unix.CLONE_NEWNET); err == nil {
			err = do()
		}
	}()
	<-done
	return err
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) note(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[what]++
}

// serve starts the servers, which end with the test.
func (w *world) serve() error {
	lines, err := net.Listen("tcp", fmt.Sprint(":", linesPort))
	if err != nil {
		return err
	}
	w.t.Cleanup(func() { lines.Close() })
	go w.serveLines(lines)
	for _, nic := range gateNICs {
		for at, serve := range map[netip.AddrPort]func(*net.UDPConn){
			netip.AddrPortFrom(nic.Gateway, datagramsPort): w.serveDatagrams,
			netip.AddrPortFrom(nic.DNS, 53):                w.serveNames,
		} {
			// The address is there only when the VF is.
			c, err := (&net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
				c.Control(func(fd uintptr) {
					err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1),
						unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
				})
				return err
			}}).ListenPacket(context.Background(), "udp", at.String())
			if err != nil {
				return err
			}
			w.t.Cleanup(func() { c.Close() })
			go serve(c.(*net.UDPConn))
		}
	}
	return nil
}

// serveLines answers each line of a connection.
func (w *world) serveLines(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				w.note(lines.Text())
				fmt.Fprintln(conn, "heard", lines.Text())
			}
		}()
	}
}

// serveDatagrams answers datagrams, and looks at the order of those of one stream: "name number".
func (w *world) serveDatagrams(c *net.UDPConn) {
	b := make([]byte, 2*len(large))
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		w.note(string(b[:n]))
		stream, text, _ := strings.Cut(string(b[:n]), " ")
		number, _ := strconv.Atoi(text)
		w.mu.Lock()
		if number < w.last[stream] {
			w.backward++
		}
		w.last[stream] = max(w.last[stream], number)
		w.mu.Unlock()
		c.WriteToUDPAddrPort(b[:n], from)
	}
}

// serveNames gives each name the address 192.0.2.7.
func (w *world) serveNames(c *net.UDPConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(b[:n]); err != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		w.note(q.Type.String() + " " + q.Name.String())
		m.Response, m.Additionals = true, nil
		if q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
				Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, 7}}}}
		}
		if reply, err := m.Pack(); err == nil {
			c.WriteToUDPAddrPort(reply, from)
		}
	}
}

// plug makes the VF appear.
func (w *world) plug() error {
	mac, err := parseMAC(vethMAC)
	if err != nil {
		return err
	}
	err = w.in(w.guest, func() error {
		return nl.LinkAdd(&nl.Veth{LinkAttrs: nl.LinkAttrs{Name: "vf", HardwareAddr: mac},
			PeerName: "peer", PeerNamespace: nl.NsFd(w.peer)})
	})
	if err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	return w.in(w.peer, func() error {
		peer, err := nl.LinkByName("peer")
		if err != nil {
			return err
		}
		for _, a := range []string{"198.18.0.1/24", "198.18.0.3/24", beyond + "/32", "fd00::1/64",
			"fd00::3/64"} {
			address, err := nl.ParseAddr(a)
			if err != nil {
				return err
			}
			address.Flags = unix.IFA_F_NODAD
			if err := nl.AddrAdd(peer, address); err != nil {
				return fmt.Errorf("%s: %w", a, err)
			}
		}
		return nl.LinkSetUp(peer)
	})
}

func (w *world) unplug() error {
	return w.in(w.guest, func() error {
		vf, err := nl.LinkByName("vf")
		if err != nil {
			return err
		}
		return nl.LinkDel(vf)
	})
}

// openGate closes a gate in the guest's namespace.
func (w *world) openGate(nic *wire.NIC) (g *gate) {
	w.t.Helper()
	w.must(w.in(w.guest, func() (err error) {
		g, err = openGate(nic)
		return err
	}))
	return g
}

// held waits until the gate has taken so many packets.
func (w *world) held(packets int) error {
	return w.in(w.guest, func() error {
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
			link, err := nl.LinkByName(gateName)
			if err != nil {
				return err
			}
			if link.Attrs().Statistics.TxPackets >= uint64(packets) {
				return nil
			}
			runtime.Gosched()
			<-time.After(time.Millisecond)
		}
		return fmt.Errorf("not %d packets come to the gate", packets)
	})
}

// bringUp plugs the VF in and opens the gate.
func (w *world) bringUp(g *gate, nic *wire.NIC) (told wire.Gate, err error) {
	if err := w.plug(); err != nil {
		return told, err
	}
	err = w.in(w.guest, func() error {
		rec := &recorder{host: newHost(boottime())}
		link, err := bringUp(nic, &drivers{}, rec, 20*time.Second)
		if err == nil {
			told, err = g.open(link)
		}
		return err
	})
	return told, err
}

// state describes the guest's network as far as a gate could change it.
func (w *world) state() (lines []string) {
	w.t.Helper()
	for {
		err := w.in(w.guest, func() (err error) { lines, err = describe(); return err })
		if !errors.Is(err, nl.ErrDumpInterrupted) { // the kernel changed it meanwhile
			w.must(err)
			return lines
		}
	}
}

func describe() (lines []string, err error) {
	links, err := nl.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		lines = append(lines, "link "+l.Attrs().Name)
		addresses, err := nl.AddrList(l, nl.FAMILY_ALL)
		if err != nil {
			return nil, err
		}
		for _, a := range addresses {
			if !a.IP.IsLinkLocalUnicast() {
				lines = append(lines, fmt.Sprint("address ", a.IPNet, " flags ", a.Flags))
			}
		}
	}
	for _, family := range []int{nl.FAMILY_V4, nl.FAMILY_V6} {
		routes, err := nl.RouteListFiltered(family, &nl.Route{Table: unix.RT_TABLE_UNSPEC},
			nl.RT_FILTER_TABLE)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() && !r.Dst.IP.IsMulticast() {
				r.LinkIndex = 0
				lines = append(lines, "route "+r.String())
			}
		}
		rules, err := nl.RuleList(family)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			lines = append(lines, "rule "+r.String())
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// dial connects from the guest.
func (w *world) dial(network, to string) (conn net.Conn, err error) {
	err = w.in(w.guest, func() error {
		conn, err = (&net.Dialer{Timeout: 30 * time.Second}).Dial(network, to)
		return err
	})
	if err == nil {
		conn.SetDeadline(time.Now().Add(30 * time.Second))
	}
	return conn, err
}

// The ways to speak to the network: each sends something of that name, once, and wants the answer.
// from is the guest's address, to a host of its network.
func (w *world) ways(nic *wire.NIC, name string) map[string]func() error {
	from, to := nic.Address.Addr(), nic.Gateway
	ways := map[string]func() error{
		"tcp":      func() error { return w.byTCP(from, to, name+"-tcp") },
		"udp":      func() error { return w.byUDP(from, to, name+"-udp", 20) },
		"large":    func() error { return w.byUDP(from, to, name+large, 1) },
		"dns":      func() error { return w.byName(nic, name+"-dns.example.") },
		"static":   func() error { return w.byProgram(to, name+"-static", nil) },
		"inherits": func() error { return w.byInheritance(to, name+"-inherits") },
	}
	if from.Is4() && w.uring {
		ways["io_uring"] = func() error { return w.byUring(to, name+"-uring") }
	}
	if from.Is4() {
		ways["raw"] = func() error { return w.byRaw(to, name+"-raw") }
		ways["routed"] = func() error {
			return w.byTCP(from, netip.MustParseAddr(beyond), name+"-routed")
		}
	}
	return ways
}

func (w *world) byTCP(from, to netip.Addr, line string) error {
	conn, err := w.dial("tcp", netip.AddrPortFrom(to, linesPort).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if local := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr(); local != from {
		return fmt.Errorf("the source is %v", local)
	}
	fmt.Fprintln(conn, line)
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && answer != "heard "+line+"\n" {
		err = fmt.Errorf("answered %q", answer)
	}
	return err
}

// byUDP sends datagrams, all before the first answer.
func (w *world) byUDP(from, to netip.Addr, stream string, count int) error {
	conn, err := w.dial("udp", netip.AddrPortFrom(to, datagramsPort).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	for i := range count {
		if _, err := fmt.Fprint(conn, stream, " ", i); err != nil {
			return err
		}
	}
	heard, b := map[string]bool{}, make([]byte, 2*len(large))
	for len(heard) < count {
		n, err := conn.Read(b)
		if err != nil {
			return fmt.Errorf("%d of %d datagrams answered: %w", len(heard), count, err)
		}
		heard[string(b[:n])] = true
	}
	return nil
}

func (w *world) byName(nic *wire.NIC, name string) error {
	resolver := &net.Resolver{PreferGo: true,
		Dial: func(_ context.Context, network, _ string) (net.Conn, error) {
			return w.dial(network, netip.AddrPortFrom(nic.DNS, 53).String())
		}}
	got, err := resolver.LookupHost(w.t.Context(), name)
	if err == nil && !slices.Equal(got, []string{"192.0.2.7"}) {
		err = fmt.Errorf("resolves to %v", got)
	}
	return err
}

func (w *world) byProgram(to netip.Addr, line string, inherited *os.File) error {
	cmd := exec.Command(w.talker, netip.AddrPortFrom(to, linesPort).String(), line)
	if inherited != nil {
		cmd.Args[1], cmd.ExtraFiles = "inherited", []*os.File{inherited}
	}
	var out []byte
	err := w.in(w.guest, func() (err error) {
		var said bytes.Buffer
		cmd.Stderr = &said
		if out, err = cmd.Output(); err != nil {
			err = fmt.Errorf("%w: %s", err, &said)
		}
		return err
	})
	if got := string(out); err == nil && got != "heard "+line+"\n" && got != line+"\n" {
		err = fmt.Errorf("answered %q", got)
	}
	return err
}

// byInheritance gives a program a connected UDP socket.
func (w *world) byInheritance(to netip.Addr, line string) error {
	conn, err := w.dial("udp", netip.AddrPortFrom(to, datagramsPort).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	file, err := conn.(*net.UDPConn).File()
	if err != nil {
		return err
	}
	defer file.Close()
	return w.byProgram(to, line, file)
}

func (w *world) byUring(to netip.Addr, line string) error {
	return w.in(w.guest, func() error {
		answer, err := talkByUring(linesPort, to.As4(), line)
		if err == nil && answer != "heard "+line+"\n" {
			err = fmt.Errorf("answered %q", answer)
		}
		return err
	})
}

// byRaw pings. The namespace's own kernel answers.
func (w *world) byRaw(to netip.Addr, name string) error {
	var fd int
	err := w.in(w.guest, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const echo = 8
	message := append([]byte{echo, 0, 0, 0, 0, 1, 0, 1}, name...)
	binary.BigEndian.PutUint16(message[2:], checksum(0, message))
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
		return err
	}
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30})
	for b := make([]byte, 2048); ; {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == header4+len(message) && b[header4] == 0 &&
			bytes.Equal(b[header4+8:n], message[8:]) {
			w.note(name)
			return nil
		}
	}
}

// buildTalker builds the static program.
func buildTalker(t *testing.T) string {
	t.Helper()
	talker := filepath.Join(t.TempDir(), "talker")
	build := exec.Command("go", "build", "-trimpath", "-o", talker, "./testdata/talker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	run(t, build)
	return talker
}
