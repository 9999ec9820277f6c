package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// TestBoot boots the real kernel and initrd in pure emulation, in a few seconds each.
func TestBoot(t *testing.T) {
	if os.Getenv("FASTIOV_TEST_TESTBED") == "" {
		t.Skip("boots virtual machines: set FASTIOV_TEST_TESTBED=1 for that")
	}
	files := artefacts(t)
	t.Run("ready", func(t *testing.T) {
		m, conn := emulate(t, files, "")
		err := makeReady(t, conn, wire.Config{Secret: testSecret, Hostname: "sandbox-1",
			Program: wire.Program{Command: []string{"runtime"},
				Env: map[string]string{"GREETING": "hello"}, UID: 1000, GID: 1000,
				Mounts: []wire.Mount{
					{Path: "/etc/app", Files: []wire.File{
						{Name: "deep/name", Data: []byte("value"), Mode: 0o444}}},
					{Path: "/etc/app.conf", Files: []wire.File{
						{Data: []byte(" alone"), Mode: 0o444}}}}}})
		if err != nil {
			t.Fatal(err)
		}
		showStages(t, m, conn)
		if lines := logged(deadline(t), conn, 1); len(lines) != 1 {
			t.Errorf("logs: %+v", lines)
		} else {
			checkAround(t, lines[0].Text, map[string]string{
				"greeting": "hello", "host": "sandbox-1", "uid": "1000",
				"addresses": "[127.0.0.1/8 ::1/128]", "marker": "from the image",
				"hosts": "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 sandbox-1\n",
				"given": "value alone", "changed": "open /etc/app/other: read-only file system",
				"tmp": "<nil>", "image": "open /marker: permission denied",
			})
		}
	})
	t.Run("the runtime ends", func(t *testing.T) {
		m, conn := emulate(t, files, "")
		err := makeReady(t, conn, wire.Config{Secret: testSecret,
			Program: wire.Program{Command: []string{"runtime"},
				Env: map[string]string{"EXIT": "yes"}}})
		if err == nil || !strings.Contains(err.Error(), "the runtime runtime ended with status 3") {
			t.Errorf("ready with %v", err)
		}
		lines := logged(now(), conn, 2)
		if len(lines) != 1 || lines[0].Text != "last words" || lines[0].Stream != "stderr" {
			t.Errorf("logs: %+v", lines)
		}
		m.end(t)
	})
	t.Run("no such VF", func(t *testing.T) {
		m, conn := emulate(t, files, "")
		program := wire.Program{Command: []string{"runtime"}}
		err := makeReady(t, conn, wire.Config{Secret: testSecret, Program: program, NIC: testVF})
		if err == nil || !strings.Contains(err.Error(), "no network device has this MAC") {
			t.Errorf("ready with %v", err)
		}
		m.end(t)
	})
	t.Run("a broken image", func(t *testing.T) {
		broken := map[string]string{"kernel": files["kernel"], "initrd": files["initrd"],
			"root.erofs": t.TempDir() + "/zeros"}
		if err := os.WriteFile(broken["root.erofs"], make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		m, conn := emulate(t, broken, "")
		if err := makeReady(t, conn, wire.Config{Secret: testSecret}); err == nil ||
			!strings.Contains(err.Error(), "does not mount as erofs") {
			t.Errorf("ready with %v", err)
		}
		m.end(t)
	})
	t.Run("a root in memory", func(t *testing.T) { rootInMemory(t, files) })
	t.Run("a NIC on a tap", func(t *testing.T) { onTap(t, files) })
	t.Run("probe", func(t *testing.T) {
		m, _ := emulate(t, files, "fastiov.probe=1")
		m.end(t)
		if !strings.Contains(m.console.String(), "fastiov-probe ok") {
			t.Error("the console does not say so")
		}
	})
}

// joined returns a new file of that size, or of the size of the others that it is made of.
func joined(t *testing.T, size int64, from ...string) string {
	t.Helper()
	var all []byte
	for _, file := range from {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, content...)
	}
	path := filepath.Join(t.TempDir(), "joined")
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, max(size, int64(len(all)))); err != nil {
		t.Fatal(err)
	}
	return path
}

// onTap has a NIC as a tap gives it, which comes up as a VF does.
func onTap(t *testing.T, files map[string]string) {
	with := maps.Clone(files)
	with["initrd"] = joined(t, 0, files["initrd"], files["tap"])
	// the NIC comes before the serial port, which so is of the third device
	const control = "fastiov.control=/dev/vport2p1"
	m, conn := emulate(t, with, control, "-netdev", "user,id=tap", "-device",
		"virtio-net-pci,netdev=tap,romfile=,disable-legacy=on,mac="+testVF.MAC)
	program := wire.Program{Command: []string{"runtime"}}
	err := makeReady(t, conn, wire.Config{Secret: testSecret, Program: program, NIC: testVF})
	if err != nil {
		t.Fatal(err)
	}
	showStages(t, m, conn)
	if !slices.ContainsFunc(conn.Spans(), func(s timeline.Span) bool {
		return s.Stage == timeline.VFDriver
	}) {
		t.Errorf("its driver has no stage: %v", conn.Spans())
	}
	lines := logged(deadline(t), conn, 1)
	if len(lines) != 1 || !strings.Contains(lines[0].Text, testVF.Address.String()) {
		t.Errorf("its address is not there: %+v", lines)
	}
}

// rootInMemory boots from a read-only NVDIMM, beside a disk that has no file system.
func rootInMemory(t *testing.T, files map[string]string) {
	const size = 32 << 20
	image := joined(t, size, files["root.erofs"])
	m, conn := emulate(t, map[string]string{
		"kernel": files["kernel"], "initrd": joined(t, 0, files["initrd"], files["region"]),
		"root.erofs": joined(t, 1<<20),
	}, "root="+wire.Region, "-machine", "nvdimm=on", "-m", "slots=1,maxmem=1G", "-object",
		fmt.Sprintf("memory-backend-file,id=image,share=on,readonly=on,size=%d,mem-path=%s", size,
			image), "-device", "nvdimm,memdev=image,unarmed=on")
	err := makeReady(t, conn, wire.Config{Secret: testSecret,
		Program: wire.Program{Command: []string{"runtime"}}})
	if err != nil {
		t.Fatal(err)
	}
	showStages(t, m, conn)
	if lines := logged(deadline(t), conn, 1); len(lines) != 1 {
		t.Errorf("logs: %+v", lines)
	} else {
		checkAround(t, lines[0].Text, map[string]string{"marker": "from the image"})
	}
}

// makeReady takes the guest from its call to ready.
func makeReady(t *testing.T, conn *guest.Conn, config wire.Config) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := conn.Hello(ctx); err != nil {
		t.Fatal(err)
	}
	if err := conn.Configure(config); err != nil {
		t.Fatal(err)
	}
	return conn.Ready(ctx)
}

// checkAround compares what the runtime found around itself.
func checkAround(t *testing.T, found string, want map[string]string) {
	t.Helper()
	var got map[string]string
	if err := json.Unmarshal([]byte(found), &got); err != nil {
		t.Fatalf("%q: %v", found, err)
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s: %q, want %q", name, got[name], value)
		}
	}
	if at, err := time.Parse(time.RFC3339Nano, got["time"]); err != nil ||
		time.Since(at).Abs() > time.Minute {
		t.Errorf("the runtime's time is %q, %v", got["time"], err)
	}
}

// now is a context whose time is up.
func now() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
