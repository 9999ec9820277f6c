package qemu

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// hold reads files once into sealed memory, one after the other, and rounds its size up to steps.
// Nobody can change it under running guests. Every VMM can read it, whatever its user may open.
// Starting the next guest reads no disk.
func hold(what string, step int64, paths ...string) (*os.File, error) {
	fd, err := unix.MemfdCreate(what, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("guest %s: memfd: %w", what, err)
	}
	held := os.NewFile(uintptr(fd), what)
	var size int64
	for _, path := range paths {
		n, err := copyTo(held, path)
		if err != nil {
			held.Close()
			return nil, fmt.Errorf("guest %s: %w", what, err)
		}
		size += n
	}
	if over := size % step; over > 0 {
		err = held.Truncate(size + step - over)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
			unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		held.Close()
		return nil, fmt.Errorf("guest %s: %w", what, err)
	}
	return held, nil
}

func copyTo(held *os.File, path string) (int64, error) {
	from, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer from.Close()
	n, err := io.Copy(held, from)
	if err == nil && n == 0 {
		err = fmt.Errorf("%s is empty", path)
	}
	return n, err
}

// testify writes evidence beside the logs that would be gone with the sandbox, for the report of
// one that failed.
func testify(spec sandbox.Spec, args []string, events string) {
	for name, text := range map[string]string{"qemu.txt": strings.Join(args, "\n"),
		"limits.txt": events} {
		if text != "" { // a report that lacks it is better than none
			_ = os.WriteFile(filepath.Join(spec.Dir, name), []byte(text), 0o600)
		}
	}
}

// evidence returns the last words of the VMM and of the guest's console, to put behind the cause of
// an end.
func evidence(spec sandbox.Spec) string {
	said := ""
	// The message that QEMU waited is not evidence.
	if lines := lastLines(vmmLog(spec), 1); lines != "" && !strings.Contains(lines, ": info: ") {
		said += "; QEMU says: " + lines
	}
	if lines := lastLines(consoleLog(spec), 3); lines != "" {
		said += "; console: " + lines
	}
	return said
}

// lastLines returns the last n lines of a log as one, without anything that a terminal would obey,
// because the guest wrote them.
func lastLines(path string, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 4 << 10
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-most), io.SeekStart)
	}
	text, _ := io.ReadAll(io.LimitReader(f, most))
	var lines []string
	for line := range bytes.SplitSeq(text, []byte("\n")) {
		if shown := strings.TrimSpace(strings.Map(printable, string(line))); shown != "" {
			lines = append(lines, shown)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

func printable(r rune) rune {
	if unicode.IsPrint(r) && r != unicode.ReplacementChar {
		return r
	}
	return -1
}
