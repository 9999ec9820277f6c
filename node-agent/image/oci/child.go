package oci

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// How large a stranger's image may be when it is unpacked.
const (
	maxContent  = 4 << 30
	maxNames    = 1 << 18
	maxNaming   = 32 << 20 // bytes of names and of the targets of links
	maxAccounts = 1 << 20  // bytes of its /etc/passwd, and of its /etc/group
)

// Every program that may pull images is also the unpacking process, if it is called by that name.
func init() {
	if len(os.Args) == 1 && os.Args[0] == unpackerName {
		os.Exit(unpackMain())
	}
}

// unpackMain reads an order and layers from its standard input, writes the image to file 3, uses
// file 4 as its spool, and writes its verdict to its standard output.
func unpackMain() int {
	if err := confine(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot be confined:", err)
		return 1
	}
	image, spool := os.NewFile(3, "image"), os.NewFile(4, "spool")
	var v verdict
	p, err := unpackFrom(bufio.NewReaderSize(os.Stdin, 64<<10), spool, image)
	var known because
	switch {
	case err == nil:
		v.Program = p
	case errors.Is(err, unix.ENOSPC):
		v.Error, v.Full = err.Error(), true
	case errors.As(err, &known):
		v.Reason, v.Error = known.Reason, err.Error()
	case errors.Is(err, rootfs.ErrTooLarge):
		v.Reason, v.Error = TooLarge, err.Error()
	default:
		v.Reason, v.Error = Unusable, err.Error()
	}
	if json.NewEncoder(os.Stdout).Encode(v) != nil {
		return 1
	}
	return 0
}

func unpackFrom(in io.Reader, spool, image *os.File) (p wire.Program, err error) {
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return p, err
	}
	var o order
	if err := json.NewDecoder(io.LimitReader(in,
		int64(binary.BigEndian.Uint32(length[:])))).Decode(&o); err != nil {
		return p, err
	}
	file, err := v1.ParseConfigFile(bytes.NewReader(o.Config))
	if err != nil {
		return p, fmt.Errorf("its configuration: %w", err)
	}
	if p, err = programOf(file); err != nil {
		return p, err
	}
	if have, want := len(o.Sizes), len(file.RootFS.DiffIDs); have != want {
		return p, fmt.Errorf("it has %d layers and its configuration names %d", have, want)
	}
	t := rootfs.On(spool)
	t.Limit(min(o.Content, maxContent), maxNames, maxNaming)
	for n, size := range o.Sizes {
		if err := overlay(t, io.LimitReader(in, size), file.RootFS.DiffIDs[n]); err != nil {
			return p, fmt.Errorf("layer %d: %w", n+1, err)
		}
	}
	for _, mount := range []string{"dev", "proc", "sys", "run"} {
		if err := t.Mkdir(mount, 0o755); err != nil {
			return p, err
		}
	}
	if err := t.Mkdir("tmp", 0o1777); err != nil {
		return p, err
	}
	if p.UID, p.GID, err = lookUp(t, file.Config.User); err != nil {
		return p, err
	}
	return p, t.WriteTo(image)
}

// overlay puts a layer over the tree. It reads the layer to its end, because only then its content
// is known to match its diff id and to have nothing after the archive except padding with zeros.
func overlay(t *rootfs.Tree, sent io.Reader, diffID v1.Hash) error {
	content, err := uncompressed(bufio.NewReaderSize(sent, 64<<10))
	if err != nil {
		return err
	}
	h := sha256.New()
	r := io.TeeReader(content, h)
	if err := t.Layer(r); err != nil {
		return err
	}
	if _, err := io.Copy(&padding{}, r); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, sent); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); diffID.Algorithm != "sha256" || got != diffID.Hex {
		return refuse(NotItself, "its diff id is %s and its contents have sha256:%s", diffID, got)
	}
	return nil
}

// padding accepts the zeros that may follow an archive.
type padding struct{ n int }

func (p *padding) Write(b []byte) (int, error) {
	const most = 1 << 20
	if p.n += len(b); p.n > most || len(bytes.Trim(b, "\x00")) > 0 {
		return 0, errors.New("there is more behind the end of its archive than zeros to fill it up")
	}
	return len(b), nil
}

// uncompressed reads gzip, zstd, or neither, according to the first bytes.
func uncompressed(r *bufio.Reader) (io.Reader, error) {
	magic, _ := r.Peek(4)
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(r)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(64<<20))
	}
	return r, nil
}

// programOf returns the program that the image says is to be started.
func programOf(file *v1.ConfigFile) (p wire.Program, err error) {
	if file.OS != "linux" || file.Architecture != "amd64" {
		return p, fmt.Errorf("it is made for %s/%s, and microVMs are linux/amd64",
			file.OS, file.Architecture)
	}
	c := file.Config
	p = wire.Program{
		Command: append(c.Entrypoint, c.Cmd...), Args: len(c.Cmd),
		Dir: c.WorkingDir, Env: map[string]string{},
	}
	if len(p.Command) == 0 {
		return p, errors.New("it names no command to run; give it an entrypoint")
	}
	for _, setting := range c.Env {
		key, value, _ := strings.Cut(setting, "=")
		p.Env[key] = value
	}
	return p, nil
}

// lookUp returns the numbers of an image's user, which is written user[:group], each by name or by
// number. The names are those of the image.
func lookUp(t *rootfs.Tree, user string) (uid, gid uint32, err error) {
	if user == "" {
		return 0, 0, nil
	}
	name, group, grouped := strings.Cut(user, ":")
	entry, err := accountOf(t, "etc/passwd", name)
	if err != nil {
		return 0, 0, err
	}
	if uid, err = number(name, entry, 2); err != nil {
		return 0, 0, fmt.Errorf("its user %q is not in its /etc/passwd", name)
	}
	switch {
	case grouped:
		entry, err := accountOf(t, "etc/group", group)
		if err != nil {
			return 0, 0, err
		}
		if gid, err = number(group, entry, 2); err != nil {
			return 0, 0, fmt.Errorf("its group %q is not in its /etc/group", group)
		}
	case len(entry) > 3:
		gid, err = number("", entry, 3)
	}
	return uid, gid, err
}

// accountOf returns the fields of the line of /etc/passwd or /etc/group whose name or number is
// key, and nil if there is none.
func accountOf(t *rootfs.Tree, file, key string) ([]string, error) {
	content, err := t.ReadUpTo(file, maxAccounts)
	if errors.Is(err, rootfs.ErrTooLarge) {
		return nil, err
	}
	for line := range strings.Lines(string(content)) { // without the file there are only numbers
		entry := strings.Split(strings.TrimSpace(line), ":")
		if len(entry) > 2 && (entry[0] == key || entry[2] == key) {
			return entry, nil
		}
	}
	return nil, nil
}

// number returns a field of an account, or name itself if it is a number.
func number(name string, entry []string, field int) (uint32, error) {
	if len(entry) > field {
		name = entry[field]
	}
	n, err := strconv.ParseUint(name, 10, 32)
	return uint32(n), err
}
