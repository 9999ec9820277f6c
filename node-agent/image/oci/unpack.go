package oci

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// An order is sent to the unpacking process first; the layers follow one after the other.
type order struct {
	Config  []byte
	Sizes   []int64 // of the layers
	Content int64   // how much they may unpack to
}

// A verdict is the unpacking process's answer.
type verdict struct {
	Program wire.Program
	Reason  Reason // what was wrong with the image; empty: nothing
	Error   string
	Full    bool // the disk is full
}

const maxVerdict = 8 << 20

// Unpack merges the image's layers, writes the result to the new file root, and returns the program
// that the image says is to be started. The disk needs room for twice the permitted content.
func (i *Image) Unpack(
	ctx context.Context, root string, content int64, say func(string, ...any),
) (wire.Program, error) {
	p, err := i.unpack(ctx, root, content, say)
	return p, refusal(i.ref, err)
}

func (i *Image) unpack(
	ctx context.Context, root string, content int64, say func(string, ...any),
) (p wire.Program, err error) {
	var config bytes.Buffer
	if err := i.blob(ctx, i.manifest.Config, &config); err != nil {
		return p, fmt.Errorf("configuration: %w", err)
	}
	u, err := startUnpacker(ctx, root)
	if err != nil {
		return p, ours(err)
	}
	sent := i.send(ctx, u.in, order{Config: config.Bytes(), Content: content}, say)
	u.in.Close()
	if sent != nil && !errors.Is(sent, errGone) {
		u.cancel()
	}
	v, err := u.wait()
	switch {
	case sent != nil && !errors.Is(sent, errGone): // and therefore we ended the process
		return p, sent
	case err != nil:
		return p, err
	case v.Full:
		return p, ours(fmt.Errorf("%s: %w", v.Error, unix.ENOSPC))
	case v.Reason != "":
		return p, refuse(v.Reason, "%s", v.Error)
	case sent != nil:
		return p, refuse(Unusable, "%w", sent)
	}
	return v.Program, nil
}

// errGone means that the unpacking process stopped reading. Its verdict says why.
var errGone = errors.New("the unpacking process ended early")

type pipeTo struct{ w io.Writer }

func (p pipeTo) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	if err != nil {
		err = errGone
	}
	return n, err
}

func (i *Image) send(ctx context.Context, in io.Writer, o order, say func(string, ...any)) error {
	for _, layer := range i.manifest.Layers {
		o.Sizes = append(o.Sizes, layer.Size)
	}
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	to := pipeTo{in}
	if _, err := to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))),
		b...)); err != nil {
		return err
	}
	for n, layer := range i.manifest.Layers {
		say("unpacking layer %d of %d", n+1, len(i.manifest.Layers))
		if err := i.blob(ctx, layer, to); err != nil {
			return fmt.Errorf("layer %d: %w", n+1, err)
		}
	}
	say("writing the root image")
	return nil
}

// An unpacker is the process that unpacks one image. It runs this same program under the name
// unpackerName.
type unpacker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    bytes.Buffer
	errs   bytes.Buffer
	cell   string // the empty directory that is its root
	cancel context.CancelFunc
	ctx    context.Context
}

func startUnpacker(ctx context.Context, root string) (_ *unpacker, err error) {
	u := &unpacker{cell: root + ".cell"}
	image, err := os.OpenFile(root, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	spool, err := os.OpenFile(filepath.Dir(root), unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer spool.Close()
	if err := os.Mkdir(u.cell, 0o755); err != nil {
		return nil, err
	}
	u.ctx, u.cancel = context.WithCancel(ctx)
	u.cmd = exec.CommandContext(u.ctx, "/proc/self/exe")
	u.cmd.Args = []string{unpackerName}
	u.cmd.Env = unpackerEnv
	u.cmd.Dir = u.cell
	u.cmd.Stdout, u.cmd.Stderr = &bounded{&u.out, maxVerdict}, &bounded{&u.errs, 64 << 10}
	u.cmd.ExtraFiles = []*os.File{image, spool}
	u.cmd.SysProcAttr = apart()
	if u.in, err = u.cmd.StdinPipe(); err == nil {
		err = u.cmd.Start()
	}
	if err != nil {
		u.cancel()
		os.Remove(u.cell)
		return nil, fmt.Errorf("the process that unpacks images: %w", err)
	}
	return u, nil
}

// wait returns the process's verdict on its image, or an error made of how the process ended.
func (u *unpacker) wait() (v verdict, err error) {
	defer u.cancel()
	defer os.Remove(u.cell)
	ended := u.cmd.Wait()
	said := u.errs.String()
	switch {
	case u.ctx.Err() != nil:
		return v, context.Cause(u.ctx)
	case ended == nil && json.Unmarshal(u.out.Bytes(), &v) == nil:
		return v, nil
	case strings.Contains(said, "out of memory") ||
		strings.Contains(said, "cannot allocate memory"):
		return v, refuse(TooLarge,
			"unpacking it takes more than %d MB of memory: the process that "+
				"did was ended", maxMemory>>20)
	case strings.Contains(said, "SIGXFSZ"):
		return v, refuse(TooLarge, "unpacking it writes more than %d MB", maxFile>>20)
	case strings.Contains(said, "SIGXCPU"), ended != nil && ended.Error() == "signal: killed":
		return v, refuse(TooLarge,
			"unpacking it takes more than %d s of processor time, or of the "+
				"memory its process may have", maxSeconds)
	}
	said, _, _ = strings.Cut(said, "\n")
	return v, refuse(Unusable, "the process that unpacked it ended (%v): %s", ended, said)
}

// bounded keeps the first left bytes that are written to it.
type bounded struct {
	w    io.Writer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	if _, err := b.w.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}
