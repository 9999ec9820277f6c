package express

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A load is the work of a container and the server.
type load struct {
	Name   string
	arms   []string
	begin  func(*host) (*session, error)
	warm   int  // steps that are not measured
	most   int  // messages; 0: no bound
	steady bool // all packets but the first may go express
}

// A session is a load that is under way.
type session struct {
	step     func() error
	clocks   []int32 // of threads and processes beside the one that steps
	ends     []func() error
	messages int
	took     []float64 // ns that each message took, where it was answered
}

func (s *session) end() (err error) {
	for _, end := range s.ends {
		err = errors.Join(err, end())
	}
	return err
}

func (s *session) closes(fds ...int) {
	for _, fd := range fds {
		s.ends = append(s.ends, func() error { return unix.Close(fd) })
	}
}

// with has a thread of the server's take part. stop has its call return.
func (s *session) with(f func() error, stop func()) {
	t := begin(f)
	s.clocks = append(s.clocks, t.clock)
	s.ends = append([]func() error{func() error {
		stop()
		<-t.ended // what failed there, failed here, too
		return nil
	}}, s.ends...)
}

var (
	mostArms  = []string{Native, Bridge, Express, Paper, Flowtable}
	hostArms  = append([]string{"hooked"}, mostArms...)
	ruleArms  = []string{"bridge-1000", "express-1000"}
	paperSize = []int{32, 64, 128, 256, 512, 1024} // the paper's sizes of messages
)

// A connection takes two of the 2,048 entries that are a container's share until it has been idle
// for 10 s. Few make a load, and those of the last seconds are few enough.
const (
	few    = 112
	fits   = 900
	recent = 12 * time.Second
)

// makeRoom waits until the connections of a load fit.
func (h *host) makeRoom() {
	for {
		h.made = slices.DeleteFunc(h.made, func(at time.Time) bool {
			return time.Since(at) > recent
		})
		if len(h.made)*(few+2*turns) <= fits-few {
			h.made = append(h.made, time.Now())
			return
		}
		time.Sleep(time.Second / 10)
	}
}

// loads returns all loads.
func loads() (all []load) {
	for _, network := range []string{"udp", "tcp"} {
		for _, size := range paperSize {
			l := load{Name: fmt.Sprintf("%s-%d", network, size), arms: mostArms, warm: 20,
				steady: true, begin: func(h *host) (*session, error) {
					return h.stream(0, network, size, 32, false)
				}}
			if network == "udp" && size == 64 {
				l.arms = append(append([]string(nil), hostArms...), ruleArms...)
			}
			all = append(all, l)
		}
	}
	for _, inward := range []bool{false, true} {
		all = append(all, load{Name: map[bool]string{false: "bulk-out", true: "bulk-in"}[inward],
			arms: mostArms, warm: 20, steady: true, begin: func(h *host) (*session, error) {
				return h.stream(0, "tcp", 64<<10, 4, inward)
			}})
	}
	for n := 1; n <= containers; n++ {
		all = append(all, load{Name: fmt.Sprintf("containers-%d", n), warm: 20, steady: true,
			arms:  []string{Native, Bridge, Express},
			begin: func(h *host) (*session, error) { return h.several(n) }})
	}
	for _, network := range []string{"udp", "tcp"} {
		for _, size := range []int{1, 64, 1024} {
			l := load{Name: fmt.Sprintf("rr-%s-%d", network, size), arms: mostArms, warm: 10,
				steady: true, begin: func(h *host) (*session, error) {
					return h.askAndAnswer(network, size)
				}}
			if size == 1 {
				l.arms = append(append([]string(nil), hostArms...), ruleArms...)
			}
			all = append(all, l)
		}
	}
	return append(all,
		load{Name: "crr", arms: append(append([]string(nil), hostArms...), ruleArms...), warm: 1,
			most: few, begin: func(h *host) (*session, error) {
				return h.flows(func() int { return 0 })
			}},
		load{Name: "first", arms: mostArms, warm: 1, most: few, begin: (*host).firstPackets},
		load{Name: "flows", arms: mostArms, warm: 1, most: few, begin: (*host).things},
		load{Name: "http", arms: mostArms, warm: 10, steady: true, begin: (*host).http},
		load{Name: "mqtt", arms: mostArms, warm: 10, steady: true, begin: (*host).mqtt})
}

const (
	echoPort = 7
	sinkPort = 9
)

// program returns the namespace of the program that is measured; nil is the host's own.
func (h *host) program(n int) *os.File {
	if h.own {
		return nil
	}
	return h.containers[n]
}

// connected returns the two ends of a connection that the program began, which has been answered.
func (h *host) connected(n int, network string) (client, server int, err error) {
	kind, at := unix.SOCK_STREAM, netip.AddrPortFrom(serverAddr, sinkPort)
	if network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	if server, err = bound(h.server, kind, at); err != nil {
		return -1, -1, err
	}
	if client, err = socket(h.program(n), kind); err == nil {
		err = connect(client, at)
	}
	if err != nil {
		return -1, -1, err
	}
	b := make([]byte, 1)
	if err := send(client, b); err != nil {
		return -1, -1, err
	}
	if kind == unix.SOCK_DGRAM {
		_, from, err := unix.Recvfrom(server, b, 0)
		if err == nil {
			err = unix.Connect(server, from)
		}
		if err != nil {
			return -1, -1, err
		}
	} else {
		listener := server
		if server, err = accept(listener); err == nil {
			err = errors.Join(ready(server, kind), unix.Close(listener), hearAll(server, b))
		}
		if err != nil {
			return -1, -1, err
		}
	}
	if err := send(server, b); err != nil {
		return -1, -1, err
	}
	if err := hearAll(client, b); err != nil || kind != unix.SOCK_DGRAM || !h.express {
		return client, server, err
	}
	time.Sleep(young)
	return client, server, nil
}

// young is a little more than the time for which the express path leaves UDP on the regular one.
const young = 150 * time.Millisecond

// stream has one thread send a window of messages at one end, and hear them at the other: none is
// lost, and none waits for a thread.
func (h *host) stream(n int, network string, size, window int, inward bool) (*session, error) {
	from, to, err := h.connected(n, network)
	if err != nil {
		return nil, err
	}
	s := &session{}
	s.closes(from, to)
	if inward {
		from, to = to, from
	}
	message, heard := make([]byte, size), make([]byte, size*window)
	s.step = func() error {
		for range window {
			if err := send(from, message); err != nil {
				return err
			}
		}
		s.messages += window
		if network == "tcp" {
			return hearAll(to, heard)
		}
		for range window {
			if n, err := hear(to, heard); err != nil || n != size {
				return fmt.Errorf("a message of %d bytes came as %d: %w", size, n, err)
			}
		}
		return nil
	}
	return s, nil
}

// several has some containers stream TCP of 64 bytes by turns.
func (h *host) several(n int) (*session, error) {
	all := &session{}
	var each []*session
	for container := range n {
		s, err := h.stream(container, "tcp", 64, 32, false)
		if err != nil {
			return nil, errors.Join(err, all.end())
		}
		each, all.ends = append(each, s), append(all.ends, s.ends...)
	}
	all.step = func() error {
		for _, s := range each {
			before := s.messages
			if err := s.step(); err != nil {
				return err
			}
			all.messages += s.messages - before
		}
		return nil
	}
	return all, nil
}

const turns = 16 // of a step of what is answered

// askAndAnswer has a message go there and back.
func (h *host) askAndAnswer(network string, size int) (*session, error) {
	client, server, err := h.connected(0, network)
	if err != nil {
		return nil, err
	}
	s := &session{}
	s.closes(client, server)
	s.with(func() error {
		b := make([]byte, size)
		for {
			if err := hearAll(server, b); err != nil {
				return err
			}
			if err := send(server, b); err != nil {
				return err
			}
		}
	}, func() { _ = unix.Shutdown(server, unix.SHUT_RDWR) })
	b := make([]byte, size)
	s.step = s.turns(func() error {
		if err := send(client, b); err != nil {
			return err
		}
		return hearAll(client, b)
	})
	return s, nil
}

// turns returns a step of some turns, whose times it notes.
func (s *session) turns(one func() error) func() error {
	s.took = make([]float64, 0, 1<<16)
	return func() error {
		for range turns {
			began := time.Now()
			if err := one(); err != nil {
				return err
			}
			s.took = append(s.took, float64(time.Since(began)))
		}
		s.messages += turns
		return nil
	}
}

// flows has each message be a connection that takes some hundreds of bytes to the server, or one
// byte, and is answered one.
func (h *host) flows(hundreds func() int) (*session, error) {
	at := netip.AddrPortFrom(serverAddr, echoPort)
	listener, err := bound(h.server, unix.SOCK_STREAM, at)
	if err != nil {
		return nil, err
	}
	s := &session{}
	s.closes(listener)
	s.with(func() error {
		b := make([]byte, flowSize(255))
		for {
			fd, err := accept(listener)
			if err != nil {
				return err
			}
			if err := answerFlow(fd, b); err != nil {
				return err
			}
		}
	}, func() { _ = unix.Shutdown(listener, unix.SHUT_RDWR) })
	b := make([]byte, flowSize(255))
	s.step = s.turns(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		n := hundreds()
		b[0] = byte(n)
		if err := errors.Join(connect(fd, at), send(fd, b[:flowSize(n)])); err != nil {
			return err
		}
		for heard := 1; heard > 0; {
			if heard, err = hear(fd, b); err != nil {
				return err
			}
		}
		return nil
	})
	return s, nil
}

// things has flows of 100 to 1,400 bytes, as the paper's of lamps, sensors and speakers.
func (h *host) things() (*session, error) {
	rnd := rand.New(rand.NewPCG(1, 2)) // the same for all arms
	return h.flows(func() int { return 1 + rnd.IntN(14) })
}

func flowSize(hundreds int) int { return max(1, 100*hundreds) }

func answerFlow(fd int, b []byte) error {
	defer unix.Close(fd)
	if err := hearAll(fd, b[:1]); err != nil {
		return err
	}
	if size := flowSize(int(b[0])); size > 1 {
		if err := hearAll(fd, b[1:size]); err != nil {
			return err
		}
	}
	return send(fd, b[:1])
}

// firstPackets has each message be the first of a UDP flow, and its answer.
func (h *host) firstPackets() (*session, error) {
	at := netip.AddrPortFrom(serverAddr, echoPort)
	server, err := bound(h.server, unix.SOCK_DGRAM, at)
	if err != nil {
		return nil, err
	}
	s := &session{}
	s.closes(server)
	s.with(func() error {
		b := make([]byte, 64)
		for {
			if err := echoFrom(server, b); err != nil {
				return err
			}
		}
	}, func() { _ = unix.Shutdown(server, unix.SHUT_RDWR) })
	b := make([]byte, 1)
	s.step = s.turns(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		return errors.Join(connect(fd, at), send(fd, b), hearAll(fd, b))
	})
	return s, nil
}
