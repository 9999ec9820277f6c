//go:build scon

package scon

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// A tap sends frames at a device, and hears what comes to it.
type tap struct {
	socket int
	to     unix.SockaddrLinklayer
}

func (p place) tap(t testing.TB, device string) *tap {
	t.Helper()
	all := int(htons(unix.ETH_P_ALL))
	s := &tap{}
	p.do(t, func() (err error) {
		if s.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|
			unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		link, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		s.to = unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: link.Index}
		if err := unix.SetsockoptInt(s.socket, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING,
			1); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE,
			16<<20); err != nil {
			return err
		}
		return unix.Bind(s.socket, &s.to)
	})
	t.Cleanup(func() { unix.Close(s.socket) })
	return s
}

func htons(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

func (s *tap) send(t testing.TB, frame []byte) {
	t.Helper()
	// The other end takes no frame that exceeds its MTU.
	if err := unix.Sendto(s.socket, frame, 0, &s.to); err != nil && err != unix.ENOBUFS {
		t.Fatalf("send a frame of %d bytes: %v", len(frame), err)
	}
}

// heard returns the frames that have come, of IPv4.
func (s *tap) heard(t testing.TB) (frames [][]byte) {
	t.Helper()
	b := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(s.socket, b, 0)
		if err == unix.EAGAIN {
			return frames
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		const multicast = 1 // what a kernel says of its own accord
		if n > 14 && b[0]&multicast == 0 && binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IP {
			frames = append(frames, append([]byte(nil), b[:n]...))
		}
	}
}

// await returns what comes within a while.
func (s *tap) await(t testing.TB, within time.Duration) [][]byte {
	t.Helper()
	for until := time.Now().Add(within); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if frames := s.heard(t); len(frames) > 0 {
			return frames
		}
	}
	return nil
}

// A flow is a connection from a container to the server, or, where it is published, from the server
// to a port of the host that leads to the container.
type flow struct {
	tcp       bool
	published bool
	port      uint16    // of who began it
	seq       [2]uint32 // of who began it, and of the other
	step      int       // of the handshake of TCP
	reset     bool      // a frame with RST was among it
	tos       uint8
}

var (
	containerIP, serverIP   = net.IPv4(10, 9, 0, 2), net.IPv4(198, 18, 0, 1)
	hostIP                  = net.IPv4(198, 18, 0, 2)
	servicePort, publicPort = uint16(7), uint16(8080)
)

// A shape names all that may be strange about a frame.
type shape struct {
	ttl            uint8
	options        bool
	fragment       uint16
	dontFragment   bool
	badSum, badL4  bool
	noL4           bool
	otherMAC       bool
	badLength      bool
	padding        int
	size           int
	flags          string // of TCP; none is ACK
	seqOff, ackOff uint32
	id             uint16
}

// frame makes a frame of the flow: from the container, or to it from the server.
func (f *flow) frame(outward bool, s shape, rnd *rand.Rand) []byte {
	began := outward != f.published // by who began the flow
	ethernet := layers.Ethernet{EthernetType: layers.EthernetTypeIPv4}
	ip := layers.IPv4{Version: 4, TTL: s.ttl, TOS: f.tos, Id: s.id, Protocol: layers.IPProtocolUDP}
	var from, to uint16
	if outward {
		ethernet.SrcMAC, _ = net.ParseMAC(containerMAC)
		ethernet.DstMAC, _ = net.ParseMAC(bridgeMAC)
		ip.SrcIP, ip.DstIP = containerIP, serverIP
		from, to = f.port, servicePort
		if f.published {
			from, to = 80, f.port
		}
	} else {
		ethernet.SrcMAC, _ = net.ParseMAC(serverMAC)
		ethernet.DstMAC, _ = net.ParseMAC(nicMAC)
		ip.SrcIP, ip.DstIP = serverIP, hostIP
		from, to = servicePort, f.port
		if f.published {
			from, to = f.port, publicPort
		}
	}
	if s.otherMAC {
		ethernet.DstMAC = net.HardwareAddr{2, 9, 9, 9, 9, 9}
	}
	if s.dontFragment {
		ip.Flags = layers.IPv4DontFragment
	}
	if s.fragment > 0 {
		ip.Flags, ip.FragOffset = layers.IPv4MoreFragments, s.fragment-1
	}
	if s.options {
		ip.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1},
			{OptionType: 0}}
	}
	payload := make(gopacket.Payload, s.size)
	for i := range payload {
		payload[i] = byte(rnd.Uint32())
	}
	all := []gopacket.SerializableLayer{&ethernet, &ip}
	if f.tcp {
		ip.Protocol = layers.IPProtocolTCP
		mine, theirs := 0, 1
		if !began {
			mine, theirs = 1, 0
		}
		tcp := &layers.TCP{SrcPort: layers.TCPPort(from), DstPort: layers.TCPPort(to),
			Seq: f.seq[mine] + s.seqOff, Ack: f.seq[theirs] + s.ackOff, Window: 0xffff, ACK: true}
		if s.flags != "" {
			tcp.ACK = false
		}
		for _, flag := range s.flags {
			switch flag {
			case 'S':
				tcp.SYN = true
			case 'A':
				tcp.ACK = true
			case 'F':
				tcp.FIN = true
			case 'R':
				tcp.RST = true
			case 'P':
				tcp.PSH = true
			case 'U':
				tcp.URG = true
			case 'E':
				tcp.ECE = true
			}
		}
		if !tcp.ACK {
			tcp.Ack = 0
		}
		_ = tcp.SetNetworkLayerForChecksum(&ip)
		all = append(all, tcp)
		if s.seqOff == 0 && s.fragment == 0 {
			f.seq[mine] += uint32(s.size)
			if tcp.SYN || tcp.FIN {
				f.seq[mine]++
			}
		}
	} else {
		udp := &layers.UDP{SrcPort: layers.UDPPort(from), DstPort: layers.UDPPort(to)}
		_ = udp.SetNetworkLayerForChecksum(&ip)
		all = append(all, udp)
	}
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true,
		ComputeChecksums: true}, append(all, payload)...); err != nil {
		panic(err)
	}
	frame := buffer.Bytes()
	header := 20
	if s.options {
		header = 24
	}
	sum := 14 + header + 6
	if f.tcp {
		sum = 14 + header + 16
	}
	switch {
	case s.badL4:
		frame[sum] ^= 0x5a
	case s.noL4 && !f.tcp:
		frame[sum], frame[sum+1] = 0, 0
	case s.badLength && !f.tcp:
		frame[14+header+5]++
	}
	if s.badSum {
		frame[14+10] ^= 0x11
	}
	return append(frame, make([]byte, s.padding)...)
}

// whole reports whether a frame's transport checksum holds, or it has none to hold.
func whole(frame []byte) bool {
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	ip, _ := packet.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	if ip == nil || ip.FragOffset > 0 || ip.Flags&layers.IPv4MoreFragments > 0 {
		return true
	}
	segment := ip.Payload
	pseudo := append(append(append([]byte(nil), ip.SrcIP.To4()...), ip.DstIP.To4()...), 0,
		byte(ip.Protocol))
	switch ip.Protocol {
	case layers.IPProtocolTCP:
	case layers.IPProtocolUDP:
		if len(segment) >= 8 && segment[6] == 0 && segment[7] == 0 {
			return true
		}
	default:
		return true
	}
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(segment)))
	all := append(pseudo, segment...)
	if len(all)%2 == 1 {
		all = append(all, 0)
	}
	var sum uint32
	for i := 0; i < len(all); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(all[i:]))
	}
	for sum>>16 > 0 {
		sum = sum&0xffff + sum>>16
	}
	return sum == 0xffff
}
