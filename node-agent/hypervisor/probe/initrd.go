package probe

import (
	"bytes"
	"encoding/binary"
	"os"

	"github.com/cavaliergopher/cpio"
	"golang.org/x/sys/unix"
)

// message is the line that the guest prints.
const message = "fastiov-probe ok"

// initramfs returns an unnamed file with one whose /init prints the message and powers off.
func initramfs() (*os.File, error) {
	fd, err := unix.MemfdCreate("initrd", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "initrd")
	init := program()
	w := cpio.NewWriter(f)
	err = w.WriteHeader(&cpio.Header{
		Name: "init", Mode: cpio.TypeReg | 0o755, Size: int64(len(init)),
	})
	if err == nil {
		_, err = w.Write(init)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// program returns a complete x86-64 program, so a probe needs neither a compiler nor another
// program of ours.
func program() []byte {
	const (
		base       = 0x400000
		headers    = 64 + 56
		exec, amd  = 2, 62
		load, r, x = 1, 4, 1
	)
	line := []byte(message + "\n")
	code := []byte{
		0xb8, 1, 0, 0, 0, // mov eax, 1 (write)
		0xbf, 1, 0, 0, 0, // mov edi, 1 (stdout)
		0x48, 0x8d, 0x35, 31, 0, 0, 0, // lea rsi, [rip+31] (the line, after the code)
		0xba, byte(len(line)), 0, 0, 0, // mov edx, its length
		0x0f, 0x05, // syscall
		0xb8, 169, 0, 0, 0, // mov eax, 169 (reboot)
		0xbf, 0xad, 0xde, 0xe1, 0xfe, // mov edi, 0xfee1dead
		0xbe, 0x69, 0x19, 0x12, 0x28, // mov esi, 0x28121969
		0xba, 0xdc, 0xfe, 0x21, 0x43, // mov edx, 0x4321fedc (power off)
		0x0f, 0x05, // syscall
		0xeb, 0xfe, // jmp to itself
	}
	size := uint64(headers + len(code) + len(line))
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, field := range []any{
		uint16(exec), uint16(amd), uint32(1), uint64(base + headers), uint64(64), uint64(0),
		uint32(0), uint16(64), uint16(56), uint16(1),
		uint16(0), uint16(0), uint16(0), // no sections
		uint32(load), uint32(r | x), uint64(0), uint64(base), uint64(base), size, size,
		uint64(0x1000),
	} {
		_ = binary.Write(&b, binary.LittleEndian, field)
	}
	b.Write(code)
	b.Write(line)
	return b.Bytes()
}
