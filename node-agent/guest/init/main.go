// Command init is process 1 of the microVM, the only program in its initrd beside kernel modules.
//
//	modules ─┬─ (a NIC's driver probes alongside) ───────────────────┐
//	         ├─ call the host, hello                              │
//	         ├─ root: image + tmpfs overlay                       │
//	         └─ config: time, entropy, names ─┬─ gate: keeps packets ─ VF: up ─ gate: opens
//	                                          └─ runtime: start, accept ─ ready
//
// Once ready, the guest runs until the runtime ends. If the host wants no gate, the runtime starts
// when the VF is up.
//
// If anything fails before that, the guest says why (to the host, or at least on the console) and
// powers off: it never hangs and never restarts. Only a connection that is lost after ready does
// not end it: the agent may have been restarted, and is called again.
//
// It runs on an emulated or freshly started CPU where each page fault counts, so it stays small:
// raw sockets in place of package net, and it executes no program but the runtime. It reports times
// of CLOCK_BOOTTIME, and sends a stage when it has ended.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

const (
	configWithin  = 60 * time.Second // by then the agent has long given up
	driverWithin  = 60 * time.Second
	linkWithin    = 20 * time.Second
	runtimeWithin = 5 * time.Minute // the agent, which knows what machine this is, gives up first
	farewell      = 2 * time.Second
)

func main() {
	start := boottime()
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr,
			"this program is process 1 of a fastiov microVM and cannot be run by hand")
		os.Exit(2)
	}
	// A goroutine in a slow system call must not hold up the others, however few CPUs there are.
	runtime.GOMAXPROCS(4)
	h := newHost(start)
	ended := make(chan error, 1)
	go func() { ended <- live(h) }()
	var reason error
	select {
	case reason = <-ended:
	case reason = <-h.down:
	}
	end(h, h.why(reason))
}

// end tells why, as long as that takes and no longer than farewell, and powers off.
func end(h *host, reason error) {
	time.AfterFunc(farewell, powerOff)
	if reason != nil {
		say("fastiov-init: the guest ends: %v", reason)
		h.goodbye(reason)
	}
	powerOff()
}

// live is the guest's life; its error is why it ends.
func live(h *host) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("init panicked: %v", r)
		}
	}()
	if err := mountKernel(); err != nil {
		return err
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	options := kernelOptions(string(line))
	if options["fastiov.probe"] == "1" {
		say("fastiov-probe ok")
		return nil
	}
	rec := &recorder{host: h}
	nicDrivers, err := loadModules(rec, moduleLists...)
	if err != nil {
		return err
	}
	h.gates = unix.Access(tunDevice, unix.F_OK) == nil
	h.call(dialer(options))
	if err := rec.step("root", func() error { return enterRoot(options["root"]) }); err != nil {
		return err
	}
	config, err := h.config(configWithin)
	if err != nil {
		return err
	}
	return serve(h, rec, config, nicDrivers)
}

// serve makes the guest what config says and stays until the runtime ends.
func serve(h *host, rec *recorder, config *wire.Config, nicDrivers *drivers) error {
	if err := rec.step("settle", func() error { return settle(config) }); err != nil {
		return err
	}
	begin, g, err := network(h, rec, config, nicDrivers)
	if err != nil {
		return err
	}
	port := config.Listens()
	if err := openDoor(config.Secret, port); err != nil {
		return err
	}
	inside := func() error { return staysInside("/sys/fs/cgroup", port) }
	if err := rec.step("inside", inside); err != nil {
		return err
	}
	program, err := startRuntime(config, h)
	if err != nil {
		return err
	}
	begin = rec.stage(agentStage, begin)
	if err := program.accepts(port, runtimeWithin); err != nil {
		return err
	}
	rec.stage(agentStage, begin)
	var idle time.Duration
	if g != nil {
		idle = g.idle.settle()
	}
	h.ready(idle)
	return program.wait()
}

// network gives the guest its network, or the gate until that is there. It returns when the agent
// stage that is under way has begun: anew, if the VF was waited for meanwhile, as it is where no
// gate is wanted, or none can be made. Then it returns none.
func network(h *host, rec *recorder, config *wire.Config,
	nicDrivers *drivers) (begin int64, g *gate, err error) {
	if config.NIC == nil {
		return h.start, nil, nil
	}
	up := func() (uint32, error) { return bringUp(config.NIC, nicDrivers, rec, linkWithin) }
	if config.Gate {
		err = rec.step("gate", func() (err error) {
			g, err = openGate(config.NIC)
			return err
		})
		if err == nil {
			h.shut()
			go g.until(up, h)
			return h.start, g, nil
		}
		say("fastiov-init: the program waits for its VF: %v", err)
	}
	rec.stage(agentStage, h.start)
	_, err = up()
	if err == nil && config.Gate {
		h.opened(wire.Gate{Open: boottime()}) // which the agent waits for
	}
	return boottime(), nil, err
}

// kernelOptions returns the name=value words of the kernel command line.
func kernelOptions(line string) map[string]string {
	options := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		name, value, _ := strings.Cut(word, "=")
		options[name] = value
	}
	return options
}

// dialer returns the function that calls the host: over vsock, or over the device that
// fastiov.control names, for hosts that have no vsock.
func dialer(options map[string]string) func() (*os.File, error) {
	path := options["fastiov.control"]
	if path == "" {
		return func() (*os.File, error) { return dialVsock(wire.HostCID, wire.ControlPort) }
	}
	return func() (*os.File, error) { return os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0) }
}

// say writes a line on the console, which is where process 1 starts out.
func say(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }
