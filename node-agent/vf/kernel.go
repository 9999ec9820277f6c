package vf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A Kernel does what the pool asks of the kernel besides reading sysfs files. Tests put an
// emulation here.
type Kernel interface {
	// Write writes value to an existing file of sysfs.
	Write(path, value string) error
	// Reset resets a VF that is bound to vfio-pci and checks that it did. Meanwhile no other
	// process can have the VF's group. If some process has it already, Reset does nothing and
	// returns EBUSY.
	Reset(bdf, group string) error
	// GroupOpen reports whether some process holds the vfio group whose node is path.
	GroupOpen(path string) (bool, error)
	// Watch sends whenever PCI devices or network links may have changed, until ctx ends; then it
	// closes the channel. Changes that come faster than they are received are sent as one.
	Watch(ctx context.Context) (<-chan struct{}, error)
	// Refusals sends the address of a device when the kernel logs that the IOMMU refused an access
	// of it, until ctx ends; then it closes the channel.
	Refusals(ctx context.Context) (<-chan string, error)
}

// linux is the kernel this program runs on.
type linux struct{}

func (linux) Write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// GroupOpen opens the group: the kernel lets only one at a time hold it.
func (linux) GroupOpen(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, unix.EBUSY) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, f.Close()
}

func (linux) Watch(ctx context.Context) (<-chan struct{}, error) {
	links, err := subscribe(unix.NETLINK_ROUTE, unix.RTMGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("subscribe to network links: %w", err)
	}
	devices, err := subscribe(unix.NETLINK_KOBJECT_UEVENT, 1)
	if err != nil {
		links.Close()
		return nil, fmt.Errorf("subscribe to device events: %w", err)
	}
	changed := make(chan struct{}, 1)
	done := make(chan struct{}, 2)
	follow := func(socket *os.File, matters func([]byte) bool) {
		relay(socket, matters, changed)
		done <- struct{}{}
	}
	go follow(links, func([]byte) bool { return true })
	go follow(devices, func(event []byte) bool {
		return bytes.Contains(event, []byte("\x00SUBSYSTEM=pci\x00"))
	})
	go func() {
		<-ctx.Done()
		links.Close()
		devices.Close()
		<-done
		<-done
		close(changed)
	}()
	return changed, nil
}

func (linux) Refusals(ctx context.Context) (<-chan string, error) {
	log, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if _, err := log.Seek(0, io.SeekEnd); err != nil {
		log.Close()
		return nil, err
	}
	refused := make(chan string)
	stop := context.AfterFunc(ctx, func() { log.Close() })
	go func() {
		defer close(refused)
		defer stop()
		record := make([]byte, 8<<10)
		for {
			n, err := log.Read(record)
			if errors.Is(err, unix.EPIPE) {
				continue // some were overwritten before they were read
			}
			if err != nil {
				return
			}
			if bdf, ok := refusedDevice(string(record[:n])); ok {
				select {
				case refused <- bdf:
				case <-ctx.Done():
				}
			}
		}
	}()
	return refused, nil
}

func subscribe(protocol int, groups uint32) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		protocol)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
		Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// relay turns the messages of a socket into signals until the socket is closed. It ignores the text
// of a message, because the receiver looks at sysfs. An overflow of the socket (ENOBUFS) is
// therefore one more signal, and nothing is lost.
func relay(socket *os.File, matters func([]byte) bool, changed chan<- struct{}) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := socket.Read(buffer)
		switch {
		case errors.Is(err, unix.ENOBUFS):
		case err != nil:
			return
		case !matters(buffer[:n]):
			continue
		}
		wake(changed)
	}
}

// wake sends without waiting: a signal that is already under way says the same.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
