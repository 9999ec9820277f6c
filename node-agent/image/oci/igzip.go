package oci

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ISA-L's igzip is native code, which never runs in the agent. The unpacking process, which has
// given up everything by then, starts it with all that it is still allowed, and finds it in its
// root: the directory of tools has the program, its loader and its libraries, and nothing else.
const (
	igzipName = "igzip"
	loader    = "ld.so"
)

// library matches a line in which a loader says where a library is.
var library = regexp.MustCompile(`(?m)^\s*(\S+) => (/\S+) \(0x`)

// FindIgzip returns this machine's igzip, its loader and its libraries by their names in the
// directory of tools, or nil if there is none.
func FindIgzip() map[string]string {
	program, err := exec.LookPath(igzipName)
	if err != nil {
		return nil
	}
	interpreter, err := interpreterOf(program)
	if err != nil {
		return nil
	}
	said, err := exec.Command(interpreter, "--list", program).Output()
	if err != nil {
		return nil
	}
	tools := map[string]string{igzipName: program, loader: interpreter}
	for _, found := range library.FindAllStringSubmatch(string(said), -1) {
		tools[filepath.Base(found[1])] = found[2]
	}
	return tools
}

// interpreterOf returns the loader that a program names.
func interpreterOf(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close()
	section := f.Section(".interp")
	if section == nil {
		return "", fmt.Errorf("%s names no loader", program)
	}
	name, err := section.Data()
	return strings.TrimRight(string(name), "\x00"), err
}

// A process inflates in a program of its own.
type process struct {
	io.Reader
	cmd   *exec.Cmd
	said  bytes.Buffer
	fed   chan error // how what it is fed with ended, unless it reads that itself
	ended error
	done  bool
}

func openIgzip(r io.Reader) (io.ReadCloser, error) {
	p := &process{}
	p.cmd = exec.Command("./"+loader, "--library-path", ".", "./"+igzipName, "-dc")
	p.cmd.Stderr = &bounded{&p.said, 4 << 10}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var in io.WriteCloser
	if pipe, is := r.(*os.File); is {
		p.cmd.Stdin = pipe
	} else if in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if in != nil {
		p.fed = make(chan error, 1)
		go func() { // nobody waits for it: a layer may stall
			_, err := io.Copy(in, r)
			p.fed <- err
			in.Close()
		}()
	}
	widen(out)
	p.Reader = out
	return p, nil
}

// Read returns the program's own error where it failed.
func (p *process) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	if err != nil && n == 0 {
		if ended := p.end(); ended != nil {
			err = ended
		}
	}
	return n, err
}

// end waits for the program, which has closed its output or was killed.
func (p *process) end() error {
	if p.done {
		return p.ended
	}
	p.done = true
	err := p.cmd.Wait()
	select {
	case fed := <-p.fed:
		if fed != nil && !errors.Is(fed, syscall.EPIPE) {
			p.ended = fed
			return fed
		}
	default:
	}
	if err != nil {
		said, _, _ := strings.Cut(p.said.String(), "\n")
		p.ended = fmt.Errorf("%s: %w: %s", igzipName, err, said)
	}
	return p.ended
}

func (p *process) Close() error {
	if !p.done {
		_ = p.cmd.Process.Kill()
	}
	_ = p.end()
	return nil
}

func (p *process) worked() time.Duration {
	if !p.done {
		var t unix.Timespec
		clock := int32(^p.cmd.Process.Pid<<3 | 2) // as clock_getcpuclockid(3) makes it
		if unix.ClockGettime(clock, &t) != nil {
			return 0
		}
		return time.Duration(t.Nano())
	}
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// linkTools gives a process's root the tools.
func linkTools(tools, root string) error {
	if tools == "" {
		return nil
	}
	list, err := os.ReadDir(tools)
	for _, tool := range list {
		err = errors.Join(err,
			os.Link(filepath.Join(tools, tool.Name()), filepath.Join(root, tool.Name())))
	}
	return err
}
