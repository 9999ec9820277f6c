package express

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An answer of a host's process.
type answer struct {
	Measure Measure
	Error   string
	Missing bool // this machine has not what is wanted
}

func failed(err error) answer {
	text, missing := strings.CutPrefix(err.Error(), errMissing.Error()+" ")
	return answer{Error: text, Missing: missing}
}

// Serve is the process of an arm's host: it plays each load that it reads the name of, and writes
// what that came to.
func Serve(name string, in io.Reader, out io.Writer) error {
	write := json.NewEncoder(out)
	n := slices.IndexFunc(Arms, func(a Arm) bool { return a.Name == name })
	if n < 0 {
		return fmt.Errorf("there is no arm %q", name)
	}
	h, err := newHost(Arms[n])
	if err != nil {
		return write.Encode(failed(err))
	}
	defer h.close()
	if err := write.Encode(answer{}); err != nil {
		return err
	}
	for orders := json.NewDecoder(in); ; {
		var o struct {
			Load   string
			Budget time.Duration
		}
		if err := orders.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		all := loads()
		l := slices.IndexFunc(all, func(l load) bool { return l.Name == o.Load })
		if l < 0 {
			return fmt.Errorf("there is no load %q", o.Load)
		}
		var reply answer
		if reply.Measure, err = h.measure(all[l], o.Budget); err != nil {
			reply = failed(err)
		}
		if err := write.Encode(reply); err != nil {
			return err
		}
	}
}

// A remote is the process of an arm's host, as the bench has it.
type remote struct {
	process *exec.Cmd
	orders  *json.Encoder
	answers *json.Decoder
	stdin   io.Closer
}

// start starts a host, in network and mount namespaces of its own.
func start(ctx context.Context, command []string, arm string) (*remote, error) {
	r := &remote{process: exec.CommandContext(ctx, command[0], append(command[1:], arm)...)}
	r.process.Stderr = os.Stderr
	r.process.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	stdin, err := r.process.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := r.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.stdin, r.orders = stdin, json.NewEncoder(stdin)
	r.answers = json.NewDecoder(bufio.NewReader(stdout))
	if err := r.process.Start(); err != nil {
		return nil, fmt.Errorf("in network and mount namespaces of its own: %w; run as root", err)
	}
	if _, err := r.answer(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *remote) play(load string, budget time.Duration) (Measure, error) {
	if err := r.orders.Encode(map[string]any{"Load": load, "Budget": budget}); err != nil {
		return Measure{}, err
	}
	return r.answer()
}

func (r *remote) answer() (Measure, error) {
	var a answer
	if err := r.answers.Decode(&a); err != nil {
		return Measure{}, fmt.Errorf("the host's process has ended: %w", err)
	}
	switch {
	case a.Missing:
		return a.Measure, fmt.Errorf("%w %s", errMissing, a.Error)
	case a.Error != "":
		return a.Measure, errors.New(a.Error)
	}
	return a.Measure, nil
}

func (r *remote) close() error {
	return errors.Join(r.stdin.Close(), r.process.Wait())
}
