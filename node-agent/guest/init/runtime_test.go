package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

func runShell(t *testing.T, config wire.Config, script string) (lines []string, end error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	_, conn := listenLocal(t, path)
	h := newHost(boottime())
	h.call(dialLocal(path))
	if _, err := conn.Hello(deadline(t)); err != nil {
		t.Fatal(err)
	}
	config.Command = []string{"sh", "-c", script}
	p, err := startRuntime(&config, h)
	if err != nil {
		return nil, err
	}
	end = p.wait()
	h.goodbye(end)
	<-conn.Done()
	for _, l := range logged(deadline(t), conn, 100) {
		lines = append(lines, l.Stream+" "+l.Text)
	}
	slices.Sort(lines)
	return lines, end
}

func TestRuntime(t *testing.T) {
	for _, c := range []struct {
		name, script, end string
		config            wire.Config
		lines             []string
	}{
		{"output", "echo out; echo err >&2", "ended with status 0", wire.Config{}, []string{"stderr err", "stdout out"}},
		{"status", "exit 7", "ended with status 7", wire.Config{}, nil},
		{"signal", "kill -9 $$", "killed by killed", wire.Config{}, nil},
		{"environment", "echo $GREETING $HOSTNAME $HOME", "status 0", wire.Config{Hostname: "h", Program: wire.Program{Env: map[string]string{"GREETING": "hello"}}}, []string{"stdout hello h /root"}},
		{"directory", "pwd", "status 0", wire.Config{Program: wire.Program{Dir: "/usr"}}, []string{"stdout /usr"}},
		{"no input", "cat; echo done", "status 0", wire.Config{}, []string{"stdout done"}},
		{"a session of its own", `[ $$ = $(cut -d" " -f6 /proc/$$/stat) ] && echo leader`, "status 0", wire.Config{}, []string{"stdout leader"}},
		{"orphans that hold the output", "sleep 100 & echo $! > $PIDFILE; echo gone", "status 0", wire.Config{Program: wire.Program{Env: map[string]string{"PIDFILE": t.TempDir() + "/pid"}}}, []string{"stdout gone"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("needs root to be process 1's user")
			}
			lines, end := runShell(t, c.config, c.script)
			if !slices.Equal(lines, c.lines) || end == nil ||
				!strings.Contains(end.Error(), c.end) {
				t.Errorf("%q, %v; want %q, %s", lines, end, c.lines, c.end)
			}
			if pidFile := c.config.Env["PIDFILE"]; pidFile != "" {
				killListed(t, pidFile)
			}
		})
	}
}

func killListed(t *testing.T, pidFile string) {
	t.Helper()
	text, err := os.ReadFile(pidFile)
	pid := 0
	for _, digit := range strings.TrimSpace(string(text)) {
		pid = 10*pid + int(digit-'0')
	}
	if err != nil || pid < 2 {
		t.Fatalf("orphan %q: %v", text, err)
	}
	unix.Kill(pid, unix.SIGKILL)
}

// On a busy machine a runtime's last words come long after its end.
func TestLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{name: "x", exited: make(chan struct{})}
		close(p.exited)
		said := false
		p.output.Go(func() {
			time.Sleep(time.Second)
			said = true
		})
		if err := p.wait(); !said {
			t.Errorf("they are lost: %v", err)
		}
	})
}

func TestRuntimeAsAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to become another user")
	}
	lines, end := runShell(t, wire.Config{Program: wire.Program{UID: 65534, GID: 65534}},
		"id -u; id -G; echo reopened > /dev/stdout")
	if want := []string{"stdout 65534", "stdout 65534", "stdout reopened"}; !slices.Equal(lines,
		want) {
		t.Errorf("%q, %v; want %q", lines, end, want)
	}
}

func TestRuntimeThatCannotStart(t *testing.T) {
	for _, c := range []struct {
		config wire.Config
		want   string
	}{
		{wire.Config{}, "no command"},
		{wire.Config{Program: wire.Program{Command: []string{"no-such-command"}}}, `no command "no-such-command"`},
		{wire.Config{Program: wire.Program{Command: []string{"/no/such"}, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}}, "/no/such does not start"},
	} {
		if _, err := startRuntime(&c.config, newHost(boottime())); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

func TestAccepts(t *testing.T) {
	inNetwork(t, func(t *testing.T) {
		p := &program{name: "x", exited: make(chan struct{})}
		err := p.accepts(wire.RuntimePort, 10*time.Millisecond)
		if err == nil || !strings.Contains(err.Error(), "does not accept") {
			t.Errorf("nothing listens: %v", err)
		}
		close(p.exited)
		err = p.accepts(wire.RuntimePort, time.Minute)
		if err == nil || !strings.Contains(err.Error(), "ended with status") {
			t.Errorf("it has ended: %v", err)
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: wire.RuntimePort})
		}
		if err == nil {
			err = unix.Listen(fd, 1)
		}
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		if err := p.accepts(wire.RuntimePort, time.Minute); err != nil {
			t.Errorf("it listens: %v", err)
		}
	})
}

// A poll costs a guest on an emulated processor milliseconds, and its neighbours too.
func TestAProgramIsTriedSeldom(t *testing.T) {
	tries := 0
	for waited := time.Duration(0); waited < 5*time.Second; tries++ {
		next := untilAgain(waited)
		if late := next - 2*time.Millisecond; late > waited/50 {
			t.Errorf("after %v the next try is %v later", waited, next)
		}
		waited += next
	}
	if tries > 300 {
		t.Errorf("%d tries in 5 s", tries)
	}
}

func TestSplice(t *testing.T) {
	pair := func() (near, far *os.File) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if near, err = stream(fds[0]); err == nil {
			far, err = stream(fds[1])
		}
		if err != nil {
			t.Fatal(err)
		}
		return near, far
	}
	client, caller := pair()
	server, runtime := pair()
	spliced := make(chan struct{})
	go func() { splice(caller, runtime); close(spliced) }()
	request, answer := strings.Repeat("ask ", 50000), strings.Repeat("tell ", 50000)
	go func() {
		io.WriteString(client, request)
		shutdown(client, unix.SHUT_WR)
	}()
	if got, err := io.ReadAll(server); err != nil || string(got) != request {
		t.Errorf("the runtime reads %d bytes of %d, %v", len(got), len(request), err)
	}
	go func() {
		io.WriteString(server, answer) // after the request has ended
		server.Close()
	}()
	if got, err := io.ReadAll(client); err != nil || string(got) != answer {
		t.Errorf("the client reads %d bytes of %d, %v", len(got), len(answer), err)
	}
	<-spliced
}

func TestWriteNames(t *testing.T) {
	etc := t.TempDir()
	if err := os.Symlink("/run/systemd/resolve/stub-resolv.conf", etc+"/resolv.conf"); err != nil {
		t.Fatal(err)
	}
	config := wire.Config{Hostname: "h", NIC: testVF}
	if err := writeNames(etc, &config); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"hostname": "h\n", "resolv.conf": "nameserver 198.18.0.3\n",
		"hosts": "127.0.0.1 localhost\n::1 localhost\n198.18.0.2 h\n",
	} {
		if got, err := os.ReadFile(etc + "/" + name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestLoadModules(t *testing.T) {
	rec := &recorder{host: newHost(boottime())}
	if _, err := loadModules(rec, t.TempDir()+"/modules"); err != nil {
		t.Errorf("no list: %v", err)
	}
	list := t.TempDir() + "/modules"
	broken := t.TempDir() + "/igbvf.ko"
	if err := errors.Join(os.WriteFile(broken, []byte("no module"), 0o600),
		os.WriteFile(list, []byte(broken+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	vf, err := loadModules(rec, list)
	if err != nil {
		t.Fatalf("a VF driver holds up the start: %v", err)
	}
	if _, err := os.Stat(broken); err == nil {
		t.Error(
			"the module's name is still there: it may be looked up after the root directory has changed")
	}
	if _, err := bringUp(testVF, vf, rec, time.Minute); err == nil ||
		!strings.Contains(err.Error(), "igbvf") {
		t.Errorf("a VF whose driver does not load comes up: %v", err)
	}
	if err := os.WriteFile(list, []byte("/no/erofs.ko\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadModules(rec, list); err == nil || !strings.Contains(err.Error(), "erofs") {
		t.Errorf("a missing module: %v", err)
	}
}

func TestTheRuntimeIsNotToldTheSecret(t *testing.T) {
	config := wire.Config{Secret: testSecret,
		Program: wire.Program{Env: map[string]string{"A": "b"}}}
	secret, _ := testSecret.MarshalText()
	for _, variable := range environment(&config) {
		if strings.Contains(variable, string(secret)) {
			t.Errorf("it has %s", variable)
		}
	}
}
