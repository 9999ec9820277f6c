package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/mounts"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// settle gives the guest its time, its entropy, its names, its files and its loopback: all that a
// runtime needs from its first instruction on.
func settle(config *wire.Config) error {
	if err := setClock(config.Time); err != nil {
		return err
	}
	if err := addEntropy(config.Entropy); err != nil {
		return fmt.Errorf("the host's entropy is not taken: %w", err)
	}
	if err := unix.Sethostname([]byte(config.Hostname)); err != nil {
		return fmt.Errorf("the host name %q is not taken: %w", config.Hostname, err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := writeNames("/etc", config); err != nil {
		return err
	}
	return give("/run/fastiov", config.Mounts)
}

// give mounts the files that the program is given, which are kept in the folder dir.
func give(dir string, all []wire.Mount) error {
	sources, err := mounts.Write(dir, all)
	if err != nil {
		return err
	}
	for i, m := range all {
		if err := bind(sources[i], m); err != nil {
			return fmt.Errorf("the files for %s: %w", m.Path, err)
		}
	}
	return nil
}

// bind has the program find a mount at its path, whatever the image has there.
func bind(source string, m wire.Mount) error {
	if !m.Alone() {
		if err := os.MkdirAll(m.Path, 0o755); err != nil {
			return err
		}
	} else if _, err := os.Stat(m.Path); err != nil {
		if err := os.MkdirAll(filepath.Dir(m.Path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(m.Path, nil, 0o644); err != nil {
			return err
		}
	}
	if m.Room > 0 {
		return unix.Mount("tmpfs", m.Path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, m.Tmpfs())
	}
	if err := unix.Mount(source, m.Path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", m.Path, "",
		unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
}

// catchUp sets the clock of a guest that is woken. One that was paused is behind. One that ran is
// ahead, by the time that the message took, and keeps its clock: nobody in it sees time go back.
func catchUp(unixNano int64) error {
	if cameLate(time.Now(), time.Unix(0, unixNano)) {
		return nil
	}
	return setClock(unixNano)
}

// cameLate reports whether a message of that time came late to a clock that is right. The bound is
// that of an adoption, which the message is part of.
func cameLate(now, told time.Time) bool {
	ahead := now.Sub(told)
	return ahead >= 0 && ahead < 15*time.Second
}

func setClock(unixNano int64) error {
	now := unix.NsecToTimespec(unixNano)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		return fmt.Errorf("the clock cannot be set: %w", err)
	}
	return nil
}

// writeNames writes the files by which programs resolve names, over those that the image has.
func writeNames(etc string, config *wire.Config) error {
	files := map[string]string{
		"hostname": config.Hostname + "\n",
		"hosts":    "127.0.0.1 localhost\n::1 localhost\n",
	}
	if nic := config.NIC; nic != nil {
		files["hosts"] += nic.Address.Addr().String() + " " + config.Hostname + "\n"
		if nic.DNS.IsValid() {
			files["resolv.conf"] = "nameserver " + nic.DNS.String() + "\n"
		}
	} else {
		files["hosts"] += "127.0.1.1 " + config.Hostname + "\n"
	}
	if err := os.MkdirAll(etc, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(etc, name)
		os.Remove(path)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// addEntropy credits bytes to the kernel's pool, as struct rand_pool_info: bits, bytes, data.
func addEntropy(bytes []byte) error {
	random, err := os.OpenFile("/dev/random", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer random.Close()
	info := make([]uint32, 2+(len(bytes)+3)/4)
	info[0], info[1] = uint32(8*len(bytes)), uint32(len(bytes))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&info[2:][0])), len(bytes)), bytes)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, random.Fd(), unix.RNDADDENTROPY,
		uintptr(unsafe.Pointer(&info[0])))
	runtime.KeepAlive(info)
	if errno != 0 {
		return errno
	}
	return nil
}

func loopbackUp() error {
	rtnl, err := openNetlink(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return err
	}
	defer rtnl.close()
	if err := rtnl.setUp(1); err != nil {
		return fmt.Errorf("lo does not come up: %w", err)
	}
	return nil
}
