package qemu

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A root image whose contents are in files of their own is one disk for the guest: the files one
// after the other. QEMU puts them together by a description in VMware's form, the only one that it
// has for that. The description is ours, and names files that QEMU was handed.

// A description is a file in memory, open twice: QEMU takes only what may not be written.
type description struct{ write, read *os.File }

// openDisk opens the files of a root image, and a file for their description if there are several.
func openDisk(spec sandbox.Spec) (files []*os.File, d description, err error) {
	for _, path := range append([]string{spec.Root}, spec.Layers...) {
		f, err := os.Open(path)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, d, err
		}
		files = append(files, f)
	}
	if len(files) == 1 {
		return files, d, nil
	}
	fd, err := unix.MemfdCreate("disk", unix.MFD_CLOEXEC)
	if err == nil {
		d.write = os.NewFile(uintptr(fd), "disk")
		d.read, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	return files, d, err
}

// disk adds the block device called root. Its description, if it has one, is written to the file
// that is handed over for that.
func (c *command) disk(files []*os.File, d description) {
	var sets []string
	for _, f := range files {
		sets = append(sets, c.set(f))
	}
	if d.read == nil {
		c.add("-blockdev", "driver=file,node-name=root,read-only=on,locking=off,filename="+sets[0])
		return
	}
	_, _ = d.write.WriteString(describeDisk(files, sets)) // QEMU says if it is empty
	c.add("-blockdev", "driver=vmdk,node-name=root,read-only=on,file.driver=file,"+
		"file.locking=off,file.filename="+c.set(d.read))
}

func describeDisk(files []*os.File, names []string) string {
	const sector = 512
	var b strings.Builder
	b.WriteString("# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n" +
		"createType=\"twoGbMaxExtentFlat\"\n")
	for n, f := range files {
		if info, err := f.Stat(); err == nil {
			fmt.Fprintf(&b, "RW %d FLAT \"%s\" 0\n", info.Size()/sector, names[n])
		}
	}
	return b.String()
}
