package qemu

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/testbed"
)

// TestQEMUReadsADiskOfSeveralFiles has a real QEMU read a disk to its end, and compares.
func TestQEMUReadsADiskOfSeveralFiles(t *testing.T) {
	if os.Getenv("FASTIOV_TEST_TESTBED") == "" {
		t.Skip("needs the testbed's QEMU: set FASTIOV_TEST_TESTBED=1 to have it")
	}
	qemu, release, err := testbed.QEMU(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	dir := t.TempDir()
	var spec sandbox.Spec
	var want []byte
	for n, size := range []int{4096, 3 << 20, 4096, 1 << 20} {
		name := filepath.Join(dir, fmt.Sprint(n))
		content := bytes.Repeat([]byte{byte('a' + n)}, size)
		if err := os.WriteFile(name, content, 0o400); err != nil {
			t.Fatal(err)
		}
		want = append(want, content...)
		if n == 0 {
			spec.Root = name
		} else {
			spec.Layers = append(spec.Layers, name)
		}
	}
	files, description, err := openDisk(spec)
	if err != nil {
		t.Fatal(err)
	}
	c := &command{}
	c.add("-machine", "none", "-nodefaults", "-display", "none", "-qmp", "stdio", "-S")
	c.disk(files, description)
	out := filepath.Join(dir, "out")
	c.add("-blockdev", "driver=file,node-name=out,filename="+out)
	if err := os.WriteFile(out, make([]byte, len(want)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := c.cmd("", os.Stderr)
	cmd.Args = qemu.Command(c.args...)
	cmd.Path, cmd.Stdout = cmd.Args[0], nil
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	for _, f := range append(files, description.read, description.write) {
		f.Close()
	}
	for _, order := range []string{
		`{"execute":"qmp_capabilities"}`,
		`{"execute":"blockdev-backup","arguments":{"job-id":"copy","device":"root","target":"out","sync":"full"}}`,
	} {
		fmt.Fprintln(in, order)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		var event struct {
			Event string `json:"event"`
			Error any    `json:"error"`
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil || event.Error != nil {
			t.Errorf("QEMU said %s", lines.Text())
			break
		}
		if strings.HasPrefix(event.Event, "BLOCK_JOB_COMPLETED") {
			break
		}
	}
	fmt.Fprintln(in, `{"execute":"quit"}`)
	_, _ = io.Copy(io.Discard, said)
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the guest would see another disk: %d bytes (%v), want %d", len(got), err,
			len(want))
	}
}
