package testbed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/procfs"
)

// booted returns the package's host, seen from outside.
func booted(t *testing.T) *Host {
	t.Helper()
	if os.Getenv(wantEnv) == "" || os.Getenv(insideEnv) != "" {
		t.Skipf("needs a testbed seen from outside: set %s=1 to boot one", wantEnv)
	}
	h, err := shared.host(t.Context(), Needs{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestRunPassesExitCodesAndStreams(t *testing.T) {
	h := booted(t)
	for command, want := range map[string]int{
		"true": 0, "exit 7": 7, "kill -TERM $$": 128 + 15, "no-such-command": 127,
	} {
		if got, err := h.Run(t.Context(), command, nil, io.Discard, io.Discard); got != want ||
			err != nil {
			t.Errorf("%q exits with %d, %v; want %d", command, got, err, want)
		}
	}
	var out, complaint bytes.Buffer
	if _, err := h.Run(t.Context(), "pwd; cat; echo oops >&2", strings.NewReader("a\x00b"),
		&out, &complaint); err != nil {
		t.Fatal(err)
	}
	if out.String() != "/share\na\x00b" || complaint.String() != "oops\n" {
		t.Errorf("stdout %q, stderr %q", out.String(), complaint.String())
	}
	for range 50 {
		var both bytes.Buffer
		if _, err := h.Run(t.Context(), "echo out; echo err >&2", nil, &both, &both); err != nil {
			t.Fatal(err)
		}
		if both.String() != "out\nerr\n" {
			t.Fatalf("both %q", &both)
		}
	}
}

func TestCancelledCommandEndsWithAllItStarted(t *testing.T) {
	h := booted(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough := errors.New("enough")
	r, w := io.Pipe()
	go func() {
		_, _ = bufio.NewReader(r).ReadString('\n')
		cancel(enough)
		_, _ = io.Copy(io.Discard, r)
	}()
	if _, err := h.Run(ctx, "trap '' TERM; sleep 4321 & echo started; sleep 4322", nil,
		w, io.Discard); !errors.Is(err, enough) {
		t.Errorf("a cancelled command ends with %v, want the cause", err)
	}
	var left bytes.Buffer
	if _, err := h.Run(t.Context(), "pgrep -f 'sleep 432[12]'", nil,
		&left, io.Discard); err != nil || left.Len() > 0 {
		t.Errorf("still running: %q, %v", left.String(), err)
	}
}

func TestPutReplacesWhatTheHostHasSeen(t *testing.T) {
	h := booted(t)
	src := filepath.Join(t.TempDir(), "src")
	for _, content := range []string{"", "first", "second, which is longer"} {
		if content != "" {
			if err := os.WriteFile(src, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := h.Put(t.Context(), "put/it", src); err != nil {
				t.Fatal(err)
			}
		}
		var got bytes.Buffer
		if _, err := h.Run(t.Context(), "cat put/it", nil, &got, io.Discard); err != nil ||
			got.String() != content {
			t.Errorf("the host reads %q, %v; want %q", got.String(), err, content)
		}
	}
	if err := h.Put(t.Context(), "../escape", src); err == nil {
		t.Error("a path outside /share was taken")
	}
}

func TestFillReplacesADirectory(t *testing.T) {
	h := booted(t)
	for _, name := range []string{"a", "b"} {
		fill := func(dir string) error { return os.WriteFile(filepath.Join(dir, name), nil, 0o600) }
		if err := h.Fill(t.Context(), "filled", fill); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := h.Run(t.Context(), "ls filled", nil, &got, io.Discard); err != nil ||
			got.String() != name+"\n" {
			t.Errorf("the host lists %q, %v; want %q", got.String(), err, name)
		}
	}
}

func TestDialReachesAPortOfTheHost(t *testing.T) {
	h := booted(t)
	var banner [4]byte
	con, err := h.Dial(t.Context(), "tcp", "127.0.0.1:22")
	if err != nil {
		t.Fatal(err)
	}
	defer con.Close()
	if _, err := io.ReadFull(con, banner[:]); err != nil || string(banner[:]) != "SSH-" {
		t.Errorf("read %q, %v", banner, err)
	}
}

// TestWireIsRecorded sends a request over the emulated network card to a server of this machine,
// and finds it in the recording.
func TestWireIsRecorded(t *testing.T) {
	h := booted(t)
	server := http.Server{
		Addr: "127.0.0.1:0", Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute,
	}
	port, stop := serve(t, &server)
	defer stop()
	const word = "over-the-wire"
	line := "ip link set eth1 up && ip addr replace 10.0.2.15/24 dev eth1 && exec 3<>/dev/tcp/10.0.2.2/" +
		port +
		" && printf 'GET /" + word + " HTTP/1.0\\r\\n\\r\\n' >&3 && head -1 <&3"
	var out bytes.Buffer
	code, err := h.Run(t.Context(), line, nil, &out, &out)
	if err != nil || code != 0 || !strings.Contains(out.String(), "404") {
		t.Fatalf("exit code %d, %v: %q", code, err, &out)
	}
	raw, err := os.ReadFile(h.Wire(0))
	if err != nil || !bytes.Contains(raw, []byte("GET /"+word)) {
		t.Errorf("the request is not among the %d bytes of the recording (%v)", len(raw), err)
	}
}

func TestAHostThatStandsStillIsFound(t *testing.T) {
	booted(t) // or skips
	c := Config{Name: fmt.Sprintf("test-%d-stands", os.Getpid()), CPUs: 1}
	h, err := up(t.Context(), c, os.Stderr, true)
	if err != nil {
		t.Fatal(err)
	}
	defer h.discard(context.Background())
	stop := h.watch(time.Second)
	if err := unix.Kill(h.rec.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, _ = h.Run(t.Context(), "sleep 60", nil, io.Discard, io.Discard)
	if err := stop(); !errors.Is(err, errStands) {
		t.Errorf("a host that is stopped: %v", err)
	}
}

func TestSecondUpFindsTheFirst(t *testing.T) {
	t.Setenv("FASTIOV_STATE", t.TempDir())
	booted(t) // skips if there is no testbed, and makes the images exist
	var hosts [2]*Host
	var group sync.WaitGroup
	for i := range hosts {
		group.Go(func() {
			var err error
			if hosts[i], err = Up(t.Context(),
				Config{Name: "race", MemoryMiB: 1024, CPUs: 1}, io.Discard); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	if hosts[0].rec.PID != hosts[1].rec.PID {
		t.Errorf("two QEMUs, %d and %d", hosts[0].rec.PID, hosts[1].rec.PID)
	}
	if _, err := Up(t.Context(), Config{Name: "race", MemoryMiB: 8192}, io.Discard); err == nil {
		t.Error("a host that is up with less than asked for was returned")
	}
	if err := Down(t.Context(), "race", io.Discard); err != nil {
		t.Error(err)
	}
	if err := Down(t.Context(), "race", io.Discard); !errors.Is(err, ErrDown) {
		t.Errorf("the second Down returns %v", err)
	}
	if _, err := procfs.StartTicks(hosts[0].rec.PID); err == nil {
		t.Error("QEMU outlives Down")
	}
	if left, _ := filepath.Glob(filepath.Join(os.Getenv("FASTIOV_STATE"), "*",
		"*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestCancelledUpLeavesTheConsoleLogOnly(t *testing.T) {
	t.Setenv("FASTIOV_STATE", t.TempDir())
	booted(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough := errors.New("enough")
	progress := writerFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("booting")) {
			cancel(enough)
		}
		return len(b), nil
	})
	if _, err := Up(ctx, Config{Name: "cut", MemoryMiB: 1024}, progress); !errors.Is(err, enough) {
		t.Errorf("a cancelled Up returns %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(os.Getenv("FASTIOV_STATE"), "testbed", "cut", "*"))
	for _, path := range left {
		if base := filepath.Base(path); base != "lock" && base != "console.log" &&
			base != "qemu.log" {
			t.Errorf("left over: %s", base)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// serve runs server on a free port of the loopback.
func serve(t *testing.T, server *http.Server) (port string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port, func() { server.Close() }
}
