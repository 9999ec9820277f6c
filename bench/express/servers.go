package express

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
)

const (
	publishedPort = 8080 // of the host, which leads to port 80 of the first container
	hostPort      = 8081 // where a program of the host itself listens
	brokerPort    = 1883
	page64        = 64 // bytes of the page that is asked for
)

// run starts a program in a network namespace, on the CPU of this process, with which it ends.
// One that is there already is left as it is.
func (h *host) run(in *os.File, name string, arguments ...string) (*os.Process, error) {
	if p := h.programs[name]; p != nil {
		return p, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, fmt.Errorf("%w %s; install the package of that name", errMissing, name)
	}
	cmd := exec.Command(path, arguments...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	begin := cmd.Start
	if in != nil {
		begin = func() error { return netns.Inside(in, cmd.Start) }
	}
	if err := begin(); err != nil {
		return nil, err
	}
	h.programs[name] = cmd.Process
	return cmd.Process, nil
}

func (h *host) file(name, content string) (path string, err error) {
	path = filepath.Join(h.dir, name)
	return path, os.WriteFile(path, []byte(content), 0o644)
}

// nginx has a web server in the first container, or in the host, and returns where it is reached.
func (h *host) nginx() (*os.Process, netip.AddrPort, error) {
	port, at := 80, netip.AddrPortFrom(hostAddr, publishedPort)
	if h.own {
		port, at = hostPort, netip.AddrPortFrom(hostAddr, hostPort)
	}
	_, err := h.file("64", string(bytes.Repeat([]byte("x"), page64)))
	if err != nil {
		return nil, at, err
	}
	config, err := h.file("nginx.conf", fmt.Sprintf(`daemon off; master_process off; pid %s/nginx.pid;
error_log stderr crit;
events {}
http {
	access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;
	server { listen %d; root %s; }
}
`, h.dir, port, h.dir))
	if err != nil {
		return nil, at, err
	}
	p, err := h.run(h.program(0), "nginx", "-c", config)
	return p, at, err
}

// mosquitto has a broker of MQTT in a namespace.
func (h *host) mosquitto(in *os.File, at netip.Addr) (*os.Process, netip.AddrPort, error) {
	config, err := h.file("mosquitto.conf", fmt.Sprintf(`listener %d %s
allow_anonymous true
persistence false
set_tcp_nodelay true
log_dest none
`, brokerPort, at))
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	p, err := h.run(in, "mosquitto", "-c", config)
	return p, netip.AddrPortFrom(at, brokerPort), err
}

// reach connects to a program that may not listen yet.
func reach(in *os.File, to netip.AddrPort) (fd int, err error) {
	for until := time.Now().Add(patience * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if fd, err = socket(in, unix.SOCK_STREAM); err != nil {
			return -1, err
		}
		if err = connect(fd, to); err == nil {
			return fd, nil
		}
		unix.Close(fd)
		if !errors.Is(err, unix.ECONNREFUSED) || time.Now().After(until) {
			return -1, err
		}
	}
}

// http has the server ask nginx for a small page, again and again by one connection.
func (h *host) http() (*session, error) {
	nginx, at, err := h.nginx()
	if err != nil {
		return nil, err
	}
	fd, err := reach(h.server, at)
	if err != nil {
		return nil, err
	}
	s := &session{clocks: []int32{processClock(nginx.Pid)}}
	s.closes(fd)
	one, err := asks(fd, "64")
	if err != nil {
		return nil, errors.Join(err, s.end())
	}
	s.step = s.turns(one)
	return s, nil
}

// asks asks nginx for a file, and returns what asks for it again, by the same connection.
func asks(fd int, file string) (func() error, error) {
	ask := []byte("GET /" + file + " HTTP/1.1\r\nHost: fastiov\r\n\r\n")
	if err := send(fd, ask); err != nil {
		return nil, err
	}
	head := make([]byte, 0, 1024)
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		if len(head) == cap(head) {
			return nil, fmt.Errorf("nginx said %q", head)
		}
		head = head[:len(head)+1]
		if err := hearAll(fd, head[len(head)-1:]); err != nil {
			return nil, err
		}
	}
	_, after, _ := bytes.Cut(head, []byte("Content-Length: "))
	length, _, _ := bytes.Cut(after, []byte("\r"))
	size, err := strconv.Atoi(string(length))
	if err != nil || !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) {
		return nil, fmt.Errorf("nginx said %q", head)
	}
	b := make([]byte, len(head)+size) // heads are equally long: the date is
	if err := hearAll(fd, b[len(head):]); err != nil {
		return nil, err
	}
	return func() error {
		if err := send(fd, ask); err != nil {
			return err
		}
		return hearAll(fd, b)
	}, nil
}

// mqtt has the container publish by a broker of the server's, which tells a subscriber there.
func (h *host) mqtt() (*session, error) {
	broker, at, err := h.mosquitto(h.server, serverAddr)
	if err != nil {
		return nil, err
	}
	subscriber, err := joined(h.server, at, "subscriber")
	if err != nil {
		return nil, err
	}
	s := &session{clocks: []int32{processClock(broker.Pid)}}
	s.closes(subscriber)
	publisher, err := joined(h.program(0), at, "publisher")
	if err != nil {
		return nil, errors.Join(err, s.end())
	}
	s.closes(publisher)
	if err := subscribe(subscriber); err != nil {
		return nil, errors.Join(err, s.end())
	}
	message, heard := published(make([]byte, page64)), make([]byte, len(published(nil))+page64)
	s.step = s.turns(func() error {
		if err := send(publisher, message); err != nil {
			return err
		}
		return hearAll(subscriber, heard)
	})
	return s, nil
}

// The packets of MQTT 3.1.1 that are needed, for messages that are not acknowledged.

const topic = "t"

// joined connects to a broker.
func joined(in *os.File, at netip.AddrPort, as string) (fd int, err error) {
	if fd, err = reach(in, at); err != nil {
		return -1, err
	}
	const version, clean = 4, 2
	hello := append([]byte{0, 4, 'M', 'Q', 'T', 'T', version, clean, 0, 0, 0, byte(len(as))},
		as...)
	return fd, said(fd, 0x10, hello, []byte{0x20, 2, 0, 0})
}

func subscribe(fd int) error {
	return said(fd, 0x82, append(append([]byte{0, 1, 0, byte(len(topic))}, topic...), 0),
		[]byte{0x90, 3, 0, 1, 0})
}

// said sends a packet, and wants its answer.
func said(fd int, kind byte, body, want []byte) error {
	if err := send(fd, append([]byte{kind, byte(len(body))}, body...)); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if err := hearAll(fd, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("the broker answered % x, want % x", got, want)
	}
	return nil
}

// published returns the packet of a message of less than 100 bytes.
func published(message []byte) []byte {
	body := append(append([]byte{0, byte(len(topic))}, topic...), message...)
	return append([]byte{0x30, byte(len(body))}, body...)
}
