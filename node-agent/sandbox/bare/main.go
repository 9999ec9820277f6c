package bare

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk/echo"
)

const controlFD = 3 // the listening socket that the driver hands over

// Main runs the VFIO program that stands in for a VMM. args are sandbox id, MiB of memory and, if
// it has one, its VF's group node and address. It serves HTTP on the socket it inherits: /id,
// /boot, which opens the VF and says how long each step took, and the runtime's /init and /run. It
// ends when it is killed.
func Main(args []string) error {
	p, err := parse(args)
	if err != nil {
		return err
	}
	control := os.NewFile(controlFD, "control")
	l, err := net.FileListener(control)
	if err != nil {
		return fmt.Errorf("no control socket: %w (the bare driver starts this program)", err)
	}
	control.Close()
	return p.serve(l)
}

type vmm struct {
	id        string
	memory    int
	group, vf string // empty: no VF
	held      *VF
}

func parse(args []string) (*vmm, error) {
	if len(args) != 2 && len(args) != 4 {
		return nil, errors.New("want ID MEMORY-MIB [GROUP BDF]")
	}
	memory, err := strconv.Atoi(args[1])
	if err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	p := &vmm{id: args[0], memory: memory}
	if len(args) == 4 {
		p.group, p.vf = args[2], args[3]
	}
	return p, nil
}

func (p *vmm) serve(l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /id", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, p.id)
	})
	mux.HandleFunc("POST /boot", func(w http.ResponseWriter, _ *http.Request) {
		spans, err := p.boot()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(spans)
	})
	mux.Handle("POST /", echo.Handler(func(int, int) {}))
	return http.Serve(l, mux)
}

// boot does to the VF and the memory what a VMM does, and reports it as the stages of a start.
func (p *vmm) boot() ([]timeline.Span, error) {
	if p.vf == "" || p.held != nil {
		return nil, nil
	}
	begin := time.Now()
	held, err := OpenVF(p.group, p.vf)
	if err != nil {
		return nil, err
	}
	opened := time.Now()
	if err := held.MapRAM(p.memory); err != nil {
		held.Close()
		return nil, err
	}
	p.held = held
	return []timeline.Span{
		{Stage: timeline.VFIODev, Begin: begin, End: opened},
		{Stage: timeline.DMARAM, Begin: opened, End: time.Now()},
	}, nil
}
