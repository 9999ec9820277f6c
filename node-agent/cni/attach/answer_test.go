package attach_test

import (
	"encoding/json"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/cni"
	"github.com/fastiov/fastiov/node-agent/cni/attach"
	"github.com/fastiov/fastiov/node-agent/cni/cnitest"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// pipes are a listener whose answers wait until they are read. Its first Accept fails, as that of a
// process without a free descriptor does.
type pipes struct {
	net.Listener
	conns chan net.Conn
	fails sync.Once
}

func (p *pipes) Accept() (conn net.Conn, err error) {
	p.fails.Do(func() { err = unix.EMFILE })
	if err != nil {
		return nil, err
	}
	conn, open := <-p.conns
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// ask sends a request, and returns where its answer will be.
func (p *pipes) ask(t *testing.T, req cni.Request) net.Conn {
	t.Helper()
	plugin, agent := net.Pipe()
	select {
	case p.conns <- agent:
	case <-time.After(waitFor):
		t.Error("the agent hears nobody")
		return agent
	}
	if err := json.NewEncoder(plugin).Encode(req); err != nil {
		t.Error(err)
	}
	return plugin
}

func (p *pipes) do(t *testing.T, req cni.Request) (reply cni.Reply) {
	t.Helper()
	conn := p.ask(t, req)
	defer conn.Close()
	if err := json.NewDecoder(conn).Decode(&reply); err != nil || reply.Code != 0 {
		t.Errorf("%s: %+v, %v", req.Command, reply, err)
	}
	return reply
}

// An ADD whose plugin is gone is undone, and not the one that comes after it.
func TestAnUnheardADD(t *testing.T) {
	h := newHost(t)
	server := &attach.Server{Pool: h.Pool, Wires: cnitest.Wires(h.Tree), Ready: h.Agent.Ready,
		RunDir: h.cfg.Run, Log: slog.New(slog.DiscardHandler)}
	p := &pipes{conns: make(chan net.Conn)}
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Serve(p); err != nil {
			t.Error(err)
		}
	})
	c := newContainer(t, "c")
	req := cni.Request{Command: cni.Add, Netns: c.NetNS,
		Attachment: cni.Attachment{Network: "net", Container: "c", Interface: c.IfName}}
	unheard := p.ask(t, req)
	for begin := time.Now(); len(h.Pool.Leases()) == 0 && time.Since(begin) < waitFor; {
		time.Sleep(time.Millisecond)
	}
	second := make(chan cni.Reply)
	go func() {
		end := req
		end.Command = cni.Del
		p.do(t, end)
		second <- p.do(t, req)
	}()
	var reply cni.Reply
	select {
	case reply = <-second:
		unheard.Close()
	case <-time.After(time.Second): // it waits for the end of the first
		unheard.Close()
		reply = <-second
	}
	close(p.conns)
	running.Wait()
	leases := h.Pool.Leases()
	if len(leases) != 1 || leases[0].BDF != reply.Device {
		t.Fatalf("the second ADD gave %s; there are %+v", reply.Device, leases)
	}
	if err := h.Unplugged(leases[0], c.IfName); err != nil {
		t.Error(err)
	}
	h.Pool.Return(leases[0])
	h.idle(t)
}

// A turn has a CHECK take until it is over.
type turn struct {
	attach.Wires
	begun, over chan struct{}
}

func (w turn) Check(attach.Port) error {
	close(w.begun)
	<-w.over
	return nil
}

// A door tells of each plugin that has come in.
type door struct {
	net.Listener
	in chan struct{}
}

func (d door) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err == nil {
		d.in <- struct{}{}
	}
	return conn, err
}

// What is asked for an attachment that has ended meanwhile ends no later container's: neither a DEL
// whose plugin was killed before its turn came, nor a GC that waited for its turn.
func TestWhatComesLate(t *testing.T) {
	for _, late := range []string{cni.Del, cni.GC} {
		t.Run(late, func(t *testing.T) { comesLate(t, late) })
	}
}

func comesLate(t *testing.T, late string) {
	h := newHost(t)
	wires := turn{cnitest.Wires(h.Tree), make(chan struct{}), make(chan struct{})}
	server := &attach.Server{Pool: h.Pool, Wires: wires, Ready: h.Agent.Ready, RunDir: h.cfg.Run,
		Log: slog.New(slog.DiscardHandler)}
	socket := filepath.Join(t.TempDir(), "cni.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	in := make(chan struct{}, 3)
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Serve(door{listener, in}); err != nil {
			t.Error(err)
		}
	})
	c := newContainer(t, "c")
	ask := func(command string) net.Conn {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		req := cni.Request{Command: command, Netns: c.NetNS,
			Attachment: cni.Attachment{Network: "net", Container: "c", Interface: c.IfName}}
		if err := json.NewEncoder(conn).Encode(req); err != nil {
			t.Fatal(err)
		}
		<-in
		return conn
	}
	var reply cni.Reply
	if err := cni.Decode(ask(cni.Add), &reply); err != nil || reply.Code != 0 {
		t.Fatalf("ADD: %+v, %v", reply, err)
	}
	ask(cni.Check) // all others about the attachment wait for it
	<-wires.begun
	if conn := ask(late); late == cni.Del {
		conn.Close()
	} else {
		time.Sleep(2 * time.Second) // it waits for its turn by now
		former := h.Pool.Leases()[0]
		if err := h.Unplugged(former, c.IfName); err != nil {
			t.Error(err)
		}
		h.Pool.Return(former)
		owner := vf.PodIn("net/c/"+c.IfName, c.NetNS)
		lease, err := h.Pool.Lease(owner, vf.Want{Driver: vf.VFIO})
		if err != nil {
			t.Fatal(err)
		}
		reply.Device = lease.BDF
	}
	close(wires.over)
	listener.Close()
	running.Wait()
	leases := h.Pool.Leases()
	if len(leases) != 1 || leases[0].BDF != reply.Device {
		t.Fatalf("%s is the later container's; there are %+v", reply.Device, leases)
	}
	if leases[0].Driver == vf.Netdev {
		if err := h.Unplugged(leases[0], c.IfName); err != nil {
			t.Error(err)
		}
	}
	h.Pool.Return(leases[0])
	h.idle(t)
}
