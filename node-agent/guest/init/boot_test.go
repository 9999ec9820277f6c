package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
	"github.com/ulikunitz/xz"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

const testMAC = "52:54:00:12:34:56"

// serial is a transport over a virtio-serial port: QEMU connects to a socket. All guests have the CID 3.
type serial struct{ net.Listener }

func (s serial) Accept() (net.Conn, uint32, error) {
	c, err := s.Listener.Accept()
	return c, 3, err
}

// TestBoot boots init under an ordinary kernel in pure emulation, with a virtio NIC in the VF's place and a serial port in vsock's.
func TestBoot(t *testing.T) {
	tree := os.Getenv("FASTIOV_KERNEL_TREE")
	if tree == "" {
		t.Skip("FASTIOV_KERNEL_TREE names no unpacked kernel package")
	}
	dir := t.TempDir()
	build(t, ".", dir+"/init")
	build(t, "./testdata/runtime", dir+"/root/bin/runtime")
	os.WriteFile(dir+"/root/marker", []byte("from the image"), 0o644)
	run(t, "mkfs.erofs", "--quiet", dir+"/root.erofs", dir+"/root")
	makeInitrd(t, dir, tree, "virtio_blk", "crc32c_generic", "erofs", "overlay", "virtio_net")

	socket, err := net.Listen("unix", dir+"/control")
	if err != nil {
		t.Fatal(err)
	}
	calls := guest.On(serial{socket})
	defer calls.Close()
	conn, err := calls.Expect(3)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	vmm := startQEMU(t, dir, tree, "fastiov.control=/dev/vport1p1")
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	if _, err := conn.Hello(ctx); err != nil {
		t.Fatal(err)
	}
	err = conn.Configure(wire.Config{
		Hostname: "sandbox-1", Command: []string{"runtime"}, Env: map[string]string{"GREETING": "hello"}, UID: 1000, GID: 1000,
		VF: &wire.VF{MAC: testMAC, Address: netip.MustParsePrefix("10.0.2.15/24"), Gateway: netip.MustParseAddr("10.0.2.2"), DNS: netip.MustParseAddr("10.0.2.3")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	for _, s := range conn.Spans() {
		t.Logf("%-12s %8v … %8v ± %v", s.Stage, s.Begin.Sub(vmm.started).Round(time.Millisecond), s.End.Sub(vmm.started).Round(time.Millisecond), s.Error)
	}
	for _, s := range conn.Steps() {
		t.Logf("  %-30s %v", s.Name, s.End.Sub(s.Begin).Round(10*time.Microsecond))
	}
	if !hasStage(conn.Spans(), timeline.VFDriver) {
		t.Error("no 5-vf-driver among the spans")
	}
	got := ask(t, vmm.port)
	t.Log(got)
}

func hasStage(spans []timeline.Span, stage timeline.Stage) bool {
	for _, s := range spans {
		if s.Stage == stage {
			return true
		}
	}
	return false
}

func ask(t *testing.T, port string) map[string]string {
	t.Helper()
	reply, err := http.Get("http://127.0.0.1:" + port + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	var answer map[string]string
	if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

type machine struct {
	started time.Time
	port    string
	ended   chan error
}

func startQEMU(t *testing.T, dir, tree, options string) *machine {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(free.Addr().String())
	free.Close()
	kernels, _ := filepath.Glob(tree + "/boot/vmlinuz-*")
	console := &bytes.Buffer{}
	cmd := exec.Command("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-M", "q35,accel=tcg", "-cpu", "max", "-smp", "1", "-m", "256",
		"-display", "none", "-serial", "stdio", "-no-reboot", "-kernel", kernels[0], "-initrd", dir+"/initrd",
		"-append", "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t "+options,
		"-drive", "if=none,id=root,format=raw,readonly=on,file="+dir+"/root.erofs", "-device", "virtio-blk-pci,drive=root",
		"-chardev", "socket,id=control,path="+dir+"/control", "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control,name=control",
		"-netdev", "user,id=n,hostfwd=tcp:127.0.0.1:"+port+"-:8080", "-device", "virtio-net-pci,netdev=n,mac="+testMAC)
	cmd.Stdout, cmd.Stderr = console, console
	m := &machine{started: time.Now(), port: port, ended: make(chan error, 1)}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { m.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-m.ended
		t.Logf("console:\n%s", console)
	})
	return m
}

func build(t *testing.T, what, to string) {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", to, what)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func run(t *testing.T, name string, args ...string) {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// makeInitrd writes an initrd of init and modules, with what they depend on.
func makeInitrd(t *testing.T, dir, tree string, modules ...string) {
	var archive bytes.Buffer
	w := cpio.NewWriter(&archive)
	add := func(name string, mode cpio.FileMode, content []byte) {
		if err := w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(content)), Links: 1}); err != nil {
			t.Fatal(err)
		}
		w.Write(content)
	}
	init, err := os.ReadFile(dir + "/init")
	if err != nil {
		t.Fatal(err)
	}
	add("init", cpio.TypeReg|0o755, init)
	add("lib", cpio.TypeDir|0o755, nil)
	var list string
	for _, path := range inOrder(t, tree, modules) {
		name := "lib/" + strings.TrimSuffix(filepath.Base(path), ".xz")
		add(name, cpio.TypeReg|0o644, unpack(t, path))
		list += "/" + name + "\n"
	}
	add("modules", cpio.TypeReg|0o644, []byte(list))
	w.Close()
	if err := os.WriteFile(dir+"/initrd", archive.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func inOrder(t *testing.T, tree string, modules []string) []string {
	found := map[string]string{}
	filepath.Walk(tree+"/lib/modules", func(path string, _ os.FileInfo, _ error) error {
		if name, _, ok := strings.Cut(filepath.Base(path), ".ko"); ok {
			found[strings.ReplaceAll(name, "-", "_")] = path
		}
		return nil
	})
	var list []string
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		path := found[name]
		if path == "" {
			t.Fatalf("%s has no module %s", tree, name)
		}
		_, info, _ := bytes.Cut(unpack(t, path), []byte("\x00depends="))
		depends, _, _ := bytes.Cut(info, []byte{0})
		for _, d := range strings.Split(string(depends), ",") {
			if d != "" {
				visit(strings.ReplaceAll(d, "-", "_"))
			}
		}
		list = append(list, path)
	}
	for _, m := range modules {
		visit(m)
	}
	return list
}

func unpack(t *testing.T, path string) []byte {
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := xz.NewReader(bufio.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", path, err))
	}
	return b
}
