package oci

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// How large a stranger's image may be when it is unpacked.
const (
	MaxContent  = 4 << 30
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

// unpackMain reads an order from its standard input, and does it: to look at a configuration, to
// unpack the layer that follows, to merge layers into a root, or to measure inflaters. It finds its
// files behind the standard ones, and writes its verdict to its standard output.
func unpackMain() int {
	keepFiles() // igzip gets none of what is written
	if err := confine(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot be confined:", err)
		return 1
	}
	v, err := obey(os.Stdin)
	var known because
	switch {
	case err == nil:
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

// obey does the order that in begins with.
func obey(in io.Reader) (v verdict, err error) {
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return v, err
	}
	b := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(in, b); err != nil {
		return v, err
	}
	var o order
	if err := json.Unmarshal(b, &o); err != nil {
		return v, err
	}
	if o.Measure {
		member, err := io.ReadAll(in)
		v.Speeds = measured(inflaters, member, measureTime)
		return v, err
	}
	if len(o.Config) == 0 {
		most := rootfs.Limits{Bytes: min(o.Content, MaxContent), Names: maxNames, Naming: maxNaming}
		blob := handedOver(0) // is written at places: its offset is free
		room := &Room{file: handedOver(2), most: most.Bytes, mine: blob}
		v.Layer, err = layer(in, o.Inflater, most, room, blob, handedOver(1))
		return v, err
	}
	file, err := v1.ParseConfigFile(bytes.NewReader(o.Config))
	if err != nil {
		return v, fmt.Errorf("its configuration: %w", err)
	}
	for _, id := range file.RootFS.DiffIDs {
		v.DiffIDs = append(v.DiffIDs, id.String())
	}
	if v.Program, err = programOf(file); err != nil || o.Layers == nil {
		return v, err
	}
	return v, merge(o.Layers, file.Config.User, &v.Program)
}

// handedOver is the n-th file that this process was given.
func handedOver(n int) *os.File { return os.NewFile(uintptr(3+n), "handed over") }

// merge writes the root of layers, whose blobs and indexes follow it among the files.
func merge(layers []Layer, user string, p *wire.Program) (err error) {
	t := rootfs.On(nil)
	t.Limit(MaxContent, maxNames, maxNaming)
	for n, l := range layers {
		blob := rootfs.Blob{ReaderAt: handedOver(1 + 2*n), Bytes: l.Bytes}
		if err := t.Overlay(handedOver(2+2*n), blob); err != nil {
			return fmt.Errorf("layer %d: %w", n+1, err)
		}
	}
	for mount, perm := range map[string]uint32{
		"dev": 0o755, "proc": 0o755, "sys": 0o755, "run": 0o755, "tmp": 0o1777} {
		if t.Has(mount) {
			continue
		}
		if err := t.Mkdir(mount, perm); err != nil {
			return err
		}
	}
	if p.UID, p.GID, err = lookUp(t, user); err != nil {
		return err
	}
	return t.WriteTo(handedOver(0))
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
