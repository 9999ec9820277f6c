package pull

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// Ours pulls as a node's agent does: with the cache of package image, in a process that Command
// runs, which has to call Serve.
type Ours struct {
	Command []string // gets the directory of the cache and the registry as arguments
	Host    string

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// An answer holds what Serve says of a pull.
type answer struct {
	Stages   map[string]time.Duration
	Inflater string
	Error    string
}

// Serve pulls each image that a line of in names into the cache in dir, from the registry at host,
// and says on out how that went.
func Serve(ctx context.Context, dir, host string, in io.Reader, out io.Writer) error {
	registries, err := oci.ParseRegistries([]string{"http://" + host})
	if err != nil {
		return err
	}
	cache, err := image.Open(dir, io.Discard)
	if err != nil {
		return err
	}
	defer cache.Close()
	cache.Source.Allow(registries, nil)
	var a answer
	cache.Pulled = func(r image.Report) { a.Stages = r.Stages }
	for refs := bufio.NewScanner(in); refs.Scan(); {
		a = answer{}
		_, release, err := cache.Pull(ctx, refs.Text(), "")
		if err != nil {
			a.Error = err.Error()
		}
		a.Inflater = cache.Inflater()
		if err := json.NewEncoder(out).Encode(a); err != nil {
			return err
		}
		if release != nil {
			release()
		}
	}
	return nil
}

// Start implements Receiver.
func (o *Ours) Start(ctx context.Context, dir string, cpus int) (err error) {
	args := append(o.Command[1:len(o.Command):len(o.Command)], filepath.Join(dir, "cache"), o.Host)
	o.cmd = on(cpus, exec.CommandContext(ctx, o.Command[0], args...))
	o.cmd.Stderr = os.Stderr
	if o.in, err = o.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	o.out = bufio.NewScanner(out)
	return o.cmd.Start()
}

// Pull implements Receiver.
func (o *Ours) Pull(_ context.Context, ref string) (p Pulled, err error) {
	begin := time.Now()
	if _, err := io.WriteString(o.in, ref+"\n"); err != nil {
		return p, err
	}
	if !o.out.Scan() {
		return p, errors.New("the process that pulls ended")
	}
	p.Took = time.Since(begin)
	var a answer
	if err := json.Unmarshal(o.out.Bytes(), &a); err != nil {
		return p, err
	}
	if a.Error != "" {
		return p, errors.New(a.Error)
	}
	p.Stages, p.Inflater = a.Stages, a.Inflater
	return p, nil
}

// Process implements Receiver.
func (o *Ours) Process() int { return o.cmd.Process.Pid }

// Stop implements Receiver.
func (o *Ours) Stop() {
	o.in.Close()
	_ = o.cmd.Wait()
}
