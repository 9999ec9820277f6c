package scon

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// echo answers TCP and UDP at an address.
func (p place) echo(t testing.TB, address string) {
	t.Helper()
	p.do(t, func() error {
		listener, err := net.Listen("tcp4", address)
		if err != nil {
			return err
		}
		packets, err := net.ListenPacket("udp4", address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { listener.Close(); packets.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
			}
		}()
		go func() {
			b := make([]byte, 1<<16)
			for {
				n, from, err := packets.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = packets.WriteTo(b[:n], from)
			}
		}()
		return nil
	})
}

func (p place) dial(t testing.TB, network, address string) (conn net.Conn) {
	t.Helper()
	p.do(t, func() (err error) {
		conn, err = net.DialTimeout(network, address, 5*time.Second)
		return err
	})
	t.Cleanup(func() { conn.Close() })
	return conn
}

// ask sends and hears the same.
func ask(t testing.TB, conn net.Conn, times, size int) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	sent, heard := make([]byte, size), make([]byte, size)
	for n := range times {
		sent[0] = byte(n)
		wrote := make(chan error, 1)
		go func() { _, err := conn.Write(sent); wrote <- err }()
		if _, err := io.ReadFull(conn, heard); err != nil {
			t.Fatalf("question %d: %v", n, err)
		}
		if err := <-wrote; err != nil {
			t.Fatalf("question %d: %v", n, err)
		}
		if heard[0] != byte(n) {
			t.Fatalf("question %d: answer %d", n, heard[0])
		}
	}
}

// young is a little more than the time that UDP is too young to be learned.
const young = 150 * time.Millisecond

func TestExpress(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w := build(t, place{})
	s := attach(t)
	w.server.echo(t, "198.18.0.1:7")
	for _, network := range []string{"tcp4", "udp4"} {
		before := s.Counts()
		conn := w.container.dial(t, network, "198.18.0.1:7")
		ask(t, conn, 1, 64)
		time.Sleep(young)
		ask(t, conn, 100, 64)
		ask(t, conn, 10, 1400)
		now := s.Counts()
		t.Log(network, s.Refused(), before, now)
		if express := now["express"] - before["express"]; express < 200 {
			t.Errorf("%s: %d packets of 220 went express", network, express)
		}
	}
}
