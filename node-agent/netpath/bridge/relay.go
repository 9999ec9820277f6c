package bridge

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// A relay passes questions of sandboxes on to the resolvers of the host, which it reads anew for
// each: a laptop changes them with its network, and one on the loopback device is one that no
// sandbox could reach.
type relay struct {
	file   string // resolv.conf
	udp    *net.UDPConn
	tcp    net.Listener
	room   *room
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup
}

const (
	dnsPort    = 53
	resolvConf = "/etc/resolv.conf"
	questions  = 1024             // under way; what comes beyond is dropped, and asked again
	ofOne      = 64               // of them, of one sandbox
	tryWithin  = 2 * time.Second  // one resolver, before the next is asked
	idleTCP    = 10 * time.Second // a connection that brings nothing
)

func openRelay(at netip.Addr, file string, log *slog.Logger) (*relay, error) {
	r := &relay{file: cmp.Or(file, resolvConf), room: &room{of: map[netip.Addr]int{}}}
	where := netip.AddrPortFrom(at, dnsPort)
	udp, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(where))
	if err == nil {
		r.udp = udp
		if r.tcp, err = net.Listen("tcp4", where.String()); err != nil {
			udp.Close()
		}
	}
	if err != nil {
		log.Warn("sandboxes have the resolver that listens there already", "at", where, "err", err)
		return nil, nil
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.all.Go(r.serveUDP)
	r.all.Go(r.serveTCP)
	return r, nil
}

func (r *relay) close() {
	r.cancel()
	r.udp.Close()
	r.tcp.Close()
	r.all.Wait()
}

// resolvers returns those of the host.
func (r *relay) resolvers() (found []string, err error) {
	f, err := os.Open(r.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) > 1 && words[0] == "nameserver" {
			found = append(found, net.JoinHostPort(words[1], "53"))
		}
	}
	if len(found) == 0 {
		err = fmt.Errorf("%s names no resolver", r.file)
	}
	return found, err
}

func (r *relay) serveUDP() {
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := r.udp.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		who := from.Addr()
		if !r.room.enter(who) {
			continue
		}
		question := append([]byte(nil), buffer[:n]...)
		r.all.Go(func() {
			defer r.room.leave(who)
			answer, err := r.ask(question)
			if err != nil {
				answer = failure(question)
			}
			_, _ = r.udp.WriteToUDPAddrPort(answer, from)
		})
	}
}

// ask has the first resolver that answers answer.
func (r *relay) ask(question []byte) (answer []byte, err error) {
	resolvers, err := r.resolvers()
	for _, resolver := range resolvers {
		if answer, err = r.try(resolver, question); err == nil {
			return answer, nil
		}
	}
	return nil, err
}

// failure answers a question that no resolver of the host has answered, so whoever asked goes on.
func failure(question []byte) []byte {
	const header, isAnswer, servFail = 12, 0x80, 2
	if len(question) >= header {
		question[2] |= isAnswer
		question[3] = question[3]&0xf0 | servFail
	}
	return question
}

func (r *relay) try(resolver string, question []byte) ([]byte, error) {
	conn, err := r.dial("udp", resolver)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(r.ctx, func() { conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(tryWithin))
	if _, err := conn.Write(question); err != nil {
		return nil, err
	}
	answer := make([]byte, 64<<10)
	n, err := conn.Read(answer)
	return answer[:n], err
}

func (r *relay) dial(network, resolver string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: tryWithin}
	return dialer.DialContext(r.ctx, network, resolver)
}

func (r *relay) serveTCP() {
	for {
		conn, err := r.tcp.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		who := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
		if !r.room.enter(who) {
			conn.Close()
			continue
		}
		r.all.Go(func() {
			defer r.room.leave(who)
			r.relayTCP(conn)
		})
	}
}

// relayTCP joins a connection to one to the first resolver that takes it.
func (r *relay) relayTCP(from net.Conn) {
	defer from.Close()
	resolvers, _ := r.resolvers()
	for _, resolver := range resolvers {
		to, err := r.dial("tcp", resolver)
		if err != nil {
			continue
		}
		defer to.Close()
		defer context.AfterFunc(r.ctx, func() { from.Close(); to.Close() })()
		until := time.Now().Add(idleTCP)
		_, _ = from.SetDeadline(until), to.SetDeadline(until)
		var asked sync.WaitGroup
		asked.Go(func() {
			_, _ = io.Copy(to, from)
			_ = to.(*net.TCPConn).CloseWrite()
		})
		_, _ = io.Copy(from, to)
		from.Close()
		asked.Wait()
		return
	}
}

// A room counts the questions that are under way, so that no sandbox takes the place of others.
type room struct {
	mu  sync.Mutex
	all int
	of  map[netip.Addr]int
}

func (r *room) enter(who netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == questions || r.of[who] == ofOne {
		return false
	}
	r.all++
	r.of[who]++
	return true
}

func (r *room) leave(who netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all--
	if r.of[who]--; r.of[who] == 0 {
		delete(r.of, who)
	}
}
