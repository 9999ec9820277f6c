//go:build scon

package scon

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkMessages has a container and a server exchange messages, and the host itself, which is
// native. cpu-ns/op is what both ends and the host between them need: all of it runs in the context
// of this process, so others that want the CPU do not count.
func BenchmarkMessages(b *testing.B) {
	w := build(b, place{})
	w.host.run(b, "iptables -D INPUT -i nic -j DROP")
	w.server.echo(b, "198.18.0.1:7")
	w.server.sink(b, "198.18.0.1:9")
	for _, load := range []struct {
		name, network, address string
		answered               bool
		size                   int
	}{
		{"UDP-64B-there-and-back", "udp4", "198.18.0.1:7", true, 64},
		{"TCP-1B-there-and-back", "tcp4", "198.18.0.1:7", true, 1},
		{"UDP-64B", "udp4", "198.18.0.1:9", false, 64},
		{"UDP-512B", "udp4", "198.18.0.1:9", false, 512},
	} {
		for _, arm := range []string{"native", "bridge", "express"} {
			b.Run(load.name+"/"+arm, func(b *testing.B) {
				from := w.container
				if arm == "native" {
					from = w.host
				}
				if arm == "express" {
					s := attach(b)
					before := s.Counts()["express"]
					defer func() {
						express := float64(s.Counts()["express"] - before)
						b.ReportMetric(express/float64(b.N), "express/op")
					}()
				}
				messages(b, from.dial(b, load.network, load.address), load.size, load.answered)
			})
		}
	}
}

func messages(b *testing.B, conn net.Conn, size int, answered bool) {
	message := make([]byte, size)
	before := cpu(b)
	for b.Loop() {
		if _, err := conn.Write(message); err != nil {
			b.Fatal(err)
		}
		if !answered {
			continue
		}
		if _, err := io.ReadFull(conn, message); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
}

// cpu returns what this process has used of CPUs.
func cpu(b *testing.B) time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// sink hears UDP and answers nothing.
func (p place) sink(t testing.TB, address string) {
	t.Helper()
	p.do(t, func() error {
		packets, err := net.ListenPacket("udp4", address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { packets.Close() })
		go func() {
			b := make([]byte, 1<<16)
			for {
				if _, _, err := packets.ReadFrom(b); err != nil {
					return
				}
			}
		}()
		return nil
	})
}
