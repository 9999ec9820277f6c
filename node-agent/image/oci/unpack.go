package oci

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// An order is sent to the unpacking process first. With a configuration it is to look at that, and
// to merge the layers, if there are any; without, a layer follows, or gzip to measure inflaters by.
type order struct {
	Config   []byte
	Layers   []Layer
	Measure  bool
	Inflater string
	Content  int64 // how much the image's layers may unpack to
	tools    string
}

// A verdict is the unpacking process's answer.
type verdict struct {
	Program wire.Program
	DiffIDs []string
	Layer   Layer
	Speeds  map[string]float64 // of inflaters, in bytes a second
	Reason  Reason             // what was wrong with the image; empty: nothing
	Error   string
	Full    bool // the disk is full
}

const maxVerdict = 8 << 20

// Names of a layer's files.
const (
	BlobName  = "blob"
	IndexName = "index"
)

// Inspect fetches the image's configuration and returns the digests of its layers' archives. An
// image that cannot be started is refused before its layers are fetched.
func (i *Image) Inspect(ctx context.Context, cell string) (diffIDs []string, err error) {
	var config bytes.Buffer
	err = i.honestly(ctx, func(from *host) error {
		config.Reset()
		return i.blob(ctx, i.manifest.Config, &config, from, atOnce{})
	})
	if err != nil {
		return nil, refusal(i.ref, fmt.Errorf("configuration: %w", err))
	}
	i.config = config.Bytes()
	v, err := i.order(ctx, cell, order{Config: i.config}, nil, nil)
	have, want := len(i.manifest.Layers), len(v.DiffIDs)
	if err == nil && have != want {
		err = refuse(Unusable, "it has %d layers and its configuration names %d", have, want)
	}
	return v.DiffIDs, refusal(i.ref, err)
}

// Unpack fetches the n-th layer when it is its turn, and writes its blob and its index into dir, as
// far as the rooms go.
func (i *Image) Unpack(ctx context.Context, n int, dir string, with Inflating, rooms *Rooms,
	turn Turn) (l Layer, err error) {
	err = i.honestly(ctx, func(from *host) error {
		room, err := rooms.roomFor(from)
		if err == nil {
			l, err = i.unpack(ctx, n, dir, with, room, from, turn)
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("layer %d: %w", n+1, err)
	}
	return l, refusal(i.ref, err)
}

// honestly has a part of the image fetched from one host after another, as long as what came is
// not it. A process that reads what came may find that out before its digest does. All other
// parts begin at the next host from then on.
func (i *Image) honestly(ctx context.Context, fetch func(from *host) error) error {
	from := i.first.Load()
	if from == nil && len(i.hosts) > 0 {
		from = i.hosts[0]
	}
	for {
		err := fetch(from)
		var known because
		if !errors.As(err, &known) {
			return err
		}
		switch known.Reason {
		case NotItself, Unusable, TooLarge:
		default:
			return err
		}
		if from = i.after(ctx, from); from == nil {
			return err
		}
		i.passOver(from)
	}
}

func (i *Image) unpack(ctx context.Context, n int, dir string, with Inflating, room *Room,
	from *host, turn Turn) (l Layer, err error) {
	var files []*os.File
	for _, name := range []string{BlobName, IndexName} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o644)
		if err != nil {
			return l, ours(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	shared, err := room.share()
	if err != nil {
		return l, ours(err)
	}
	defer shared.Close()
	files = append(files, shared)
	taken, err := hold(ctx, turn) // which bounds how many processes there are
	if err != nil {
		return l, err
	}
	defer taken.drop()
	begin := time.Now()
	var sending time.Duration
	o := order{Inflater: with.Inflater, Content: room.most, tools: with.Tools}
	v, err := i.order(ctx, filepath.Join(dir, "cell"), o, files,
		func(ctx context.Context, in io.Writer) error {
			to := &timedWriter{w: in}
			err := i.blob(ctx, i.manifest.Layers[n], to, from, taken)
			sending = time.Since(begin) - to.took
			return err
		})
	if err != nil {
		room.back(files[0])
	}
	v.Layer.Stages.Download = sending
	return v.Layer, err
}

// Merge writes the root of the image's layers, whose directories are given, to the new file root.
func (i *Image) Merge(ctx context.Context, root string, layers []Layer, dirs []string) (
	wire.Program, error) {
	image, err := os.OpenFile(root, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return wire.Program{}, ours(err)
	}
	defer image.Close()
	files := []*os.File{image}
	for _, dir := range dirs {
		for _, name := range []string{BlobName, IndexName} {
			f, err := os.Open(filepath.Join(dir, name))
			if err != nil {
				return wire.Program{}, ours(err)
			}
			defer f.Close()
			files = append(files, f)
		}
	}
	o := order{Config: i.config, Layers: append([]Layer{}, layers...)}
	v, err := i.order(ctx, root+".cell", o, files, nil)
	return v.Program, refusal(i.ref, err)
}

// order has a process do an order with the files, and with what follow sends it.
func (i *Image) order(ctx context.Context, cell string, o order, files []*os.File,
	follow func(context.Context, io.Writer) error) (v verdict, err error) {
	u, err := startUnpacker(ctx, cell, o.tools, files)
	if err != nil {
		return v, ours(err)
	}
	sent := func() error {
		b, err := json.Marshal(o)
		if err != nil {
			return err
		}
		to := pipeTo{u.in}
		b = append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
		if _, err := to.Write(b); err != nil || follow == nil {
			return err
		}
		return follow(u.ctx, to)
	}()
	u.in.Close()
	if sent != nil && !errors.Is(sent, errGone) {
		u.cancel()
	}
	v, err = u.wait()
	switch {
	case sent != nil && !errors.Is(sent, errGone): // and therefore we ended the process
		return v, sent
	case err != nil:
		return v, err
	case v.Full:
		return v, ours(fmt.Errorf("%s: %w", v.Error, unix.ENOSPC))
	case v.Reason != "":
		return v, refuse(v.Reason, "%s", v.Error)
	case sent != nil:
		return v, refuse(Unusable, "%w", sent)
	}
	return v, nil
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

// timedWriter adds up how long a writer took.
type timedWriter struct {
	w    io.Writer
	took time.Duration
}

func (t *timedWriter) Write(b []byte) (int, error) {
	begin := time.Now()
	n, err := t.w.Write(b)
	t.took += time.Since(begin)
	return n, err
}

// An unpacker is the process that unpacks one image. It runs this same program under the name
// unpackerName.
type unpacker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    bytes.Buffer
	errs   bytes.Buffer
	cell   string // the directory that is its root, which has the tools alone
	cancel context.CancelFunc
	ctx    context.Context
}

// What this process was itself handed, and nobody marked, is not for one that it starts.
var keepFiles = sync.OnceFunc(func() {
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
})

// startUnpacker starts the process with the files. Its root is the new directory cell, into which
// the tools are linked.
func startUnpacker(ctx context.Context, cell, tools string, files []*os.File) (
	_ *unpacker, err error) {
	keepFiles()
	u := &unpacker{cell: cell}
	if err := os.Mkdir(u.cell, 0o755); err != nil {
		return nil, err
	}
	if err := linkTools(tools, u.cell); err != nil {
		os.RemoveAll(u.cell)
		return nil, err
	}
	u.ctx, u.cancel = context.WithCancel(ctx)
	u.cmd = exec.CommandContext(u.ctx, "/proc/self/exe")
	u.cmd.Args = []string{unpackerName}
	u.cmd.Env = unpackerEnv
	u.cmd.Dir = u.cell
	u.cmd.Stdout, u.cmd.Stderr = &bounded{&u.out, maxVerdict}, &bounded{&u.errs, 64 << 10}
	u.cmd.ExtraFiles = files
	u.cmd.SysProcAttr = apart()
	if u.in, err = u.cmd.StdinPipe(); err == nil {
		widen(u.in)
		err = u.cmd.Start()
	}
	if err != nil {
		u.cancel()
		os.RemoveAll(u.cell)
		return nil, fmt.Errorf("the process that unpacks images: %w", err)
	}
	return u, nil
}

// widen makes room for a megabyte in a pipe: fewer turns between who writes and who reads.
func widen(pipe any) {
	if f, is := pipe.(syscall.Conn); is {
		if raw, err := f.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pieceSize)
			})
		}
	}
}

// wait returns the process's verdict on its image, or an error made of how the process ended.
func (u *unpacker) wait() (v verdict, err error) {
	defer u.cancel()
	defer os.RemoveAll(u.cell)
	ended := u.cmd.Wait()
	said := u.errs.String()
	killed := ended != nil && ended.Error() == "signal: killed"
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
	case strings.Contains(said, "SIGXCPU"), killed && u.worked() > (maxSeconds-1)*time.Second:
		return v, refuse(TooLarge, "unpacking it takes more than %d s of processor time",
			maxSeconds)
	case strings.Contains(said, "failed to create new OS thread"):
		return v, ours(errors.New("the processes that unpack images have too many threads; pull " +
			"fewer images at a time"))
	case killed: // by its limits it is not: the kernel ends it first
		return v, ours(errors.New("the process that unpacks images was killed; see the kernel " +
			"log: this machine may be short of memory"))
	}
	said, _, _ = strings.Cut(said, "\n")
	return v, refuse(Unusable, "the process that unpacked it ended (%v): %s", ended, said)
}

// worked returns the processor time of the process, which has ended.
func (u *unpacker) worked() time.Duration {
	return u.cmd.ProcessState.UserTime() + u.cmd.ProcessState.SystemTime()
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
