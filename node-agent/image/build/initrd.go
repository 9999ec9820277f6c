package build

import (
	"bufio"
	"os"

	"github.com/cavaliergopher/cpio"
)

// An initrd is an uncompressed cpio archive being written: decompression costs the guest more
// than the bytes cost the host.
type initrd struct {
	file *os.File
	buf  *bufio.Writer
	cpio *cpio.Writer
	err  error // the first failure; later writes do nothing
}

func newInitrd(name string) *initrd {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	buf := bufio.NewWriterSize(file, 1<<20)
	return &initrd{file: file, buf: buf, cpio: cpio.NewWriter(buf), err: err}
}

func (i *initrd) dir(name string) {
	i.add(cpio.Header{Name: name, Mode: cpio.TypeDir | 0o755}, nil)
}

func (i *initrd) write(name string, perm cpio.FileMode, content []byte) {
	i.add(cpio.Header{Name: name, Mode: cpio.TypeReg | perm, Size: int64(len(content))}, content)
}

func (i *initrd) add(h cpio.Header, content []byte) {
	if i.err != nil {
		return
	}
	h.Links = 1
	if i.err = i.cpio.WriteHeader(&h); i.err == nil {
		_, i.err = i.cpio.Write(content)
	}
}

// modules writes modules below /lib and the file that names them, one a line in the order in which
// they load.
func (i *initrd) modules(file string, list []module) {
	i.dir("lib")
	i.dir("lib/modules")
	var order []byte
	for _, m := range list {
		name := "/lib/modules/" + m.name + ".ko"
		i.write(name[1:], 0o644, m.bytes)
		order = append(order, name+"\n"...)
	}
	i.write(file, 0o644, order)
}

func (i *initrd) close() error {
	for _, f := range []func() error{i.cpio.Close, i.buf.Flush} {
		if i.err == nil {
			i.err = f()
		}
	}
	if err := i.file.Close(); i.err == nil {
		i.err = err
	}
	return i.err
}
