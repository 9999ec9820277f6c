//go:build trust

package jail

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// What a program in the VMM's place tries, in addition to the answers in probe_test.go. An answer
// without an error means that it succeeded.
func init() {
	for verb, try := range map[string]func(string) (string, error){
		"get":  get,
		"dial": dial,
		"bind": bind,
		"read": func(path string) (string, error) {
			b, err := os.ReadFile(path)
			return fmt.Sprint(len(b) > 0), err
		},
		"open": func(path string) (string, error) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			f.Close()
			return "", err
		},
		"make": func(path string) (string, error) {
			f, err := os.Create(path)
			f.Close()
			return "", err
		},
		"mknod": func(path string) (string, error) {
			return "", unix.Mknod(path, unix.S_IFCHR|0o600, 0)
		},
		"family": family,
		"call":   call,
		"fill":   fill,
		"breed":  breed,
		"crash":  crash,
		"cid":    takeCID,
		"tap":    takeMAC,
		"raise": func(string) (string, error) {
			return "", unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 40, Max: 1 << 40})
		},
		"become": func(string) (string, error) { return "", unix.Setuid(0) },
		"execute": func(path string) (string, error) {
			return "", unix.Exec(path, []string{path, probeName}, nil)
		},
		"executeat": executeAt,
	} {
		answers[verb] = try
	}
}

// get calls our API as its well-known user.
func get(address string) (string, error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+address+"/api/v1/namespaces", nil)
	if err != nil {
		return "", err
	}
	request.SetBasicAuth(wellKnownUser, wellKnownKey)
	reply, err := (&http.Client{Timeout: 5 * time.Second}).Do(request)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	return string(body), err
}

func dial(where string) (string, error) {
	var cid, port uint32
	if _, err := fmt.Sscan(where, &cid, &port); err != nil {
		return "", err
	}
	c, err := vsock.Dial(cid, port, nil)
	if err != nil {
		return "", err
	}
	return "", c.Close()
}

func bind(port string) (string, error) {
	var n uint32
	if _, err := fmt.Sscan(port, &n); err != nil {
		return "", err
	}
	l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, n, nil)
	if err != nil {
		return "", err
	}
	return "", l.Close()
}

func family(number string) (string, error) {
	var f int
	if _, err := fmt.Sscan(number, &f); err != nil {
		return "", err
	}
	kind := unix.SOCK_DGRAM
	if f == unix.AF_ALG {
		kind = unix.SOCK_SEQPACKET
	}
	fd, err := unix.Socket(f, kind, 0)
	if err != nil {
		return "", err
	}
	return "", unix.Close(fd)
}

// call makes a system call with up to three numeric arguments.
func call(words string) (string, error) {
	var args [4]uintptr
	for i, word := range strings.Fields(words) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return "", err
		}
		args[i] = uintptr(n)
	}
	var parameters [120]byte
	switch args[0] {
	case unix.SYS_IO_URING_SETUP:
		args[2] = uintptr(unsafe.Pointer(&parameters))
	case unix.SYS_BPF: // an array of one number
		*(*[4]uint32)(unsafe.Pointer(&parameters)) = [4]uint32{unix.BPF_MAP_TYPE_ARRAY, 4, 4, 1}
		args[2], args[3] = uintptr(unsafe.Pointer(&parameters)), 16
	}
	if _, _, errno := unix.Syscall(args[0], args[1], args[2], args[3]); errno != 0 {
		return "", errno
	}
	return "", nil
}

// fill writes 64 MiB to the log that it inherited.
func fill(string) (string, error) {
	log := os.NewFile(3, "log")
	for range 64 {
		if _, err := log.Write(make([]byte, 1<<20)); err != nil {
			return "", err
		}
	}
	return "", nil
}

// breed forks until that fails, and reports the number of children.
func breed(string) (string, error) {
	for n := 0; ; n++ {
		child, _, errno := unix.RawSyscall(unix.SYS_FORK, 0, 0, 0)
		switch {
		case errno != 0:
			return "", fmt.Errorf("after %d: %w", n, errno)
		case child == 0:
			for {
				unix.RawSyscall(unix.SYS_PAUSE, 0, 0, 0)
			}
		case n == 10_000:
			return "", nil
		}
	}
}

func executeAt(path string) (string, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return "", err
	}
	words := []*byte{name, &[]byte(probeName + "\x00")[0], nil}
	_, _, errno := unix.Syscall6(unix.SYS_EXECVEAT, 0, uintptr(unsafe.Pointer(name)),
		uintptr(unsafe.Pointer(&words[0])), 0, 0, 0)
	return "", errno
}

// crash ends as a crashing C program does.
func crash(string) (string, error) {
	var byDefault [4]uint64
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGSEGV),
		uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	var nowhere *int
	*nowhere = 1
	return "", nil
}

// takeCID sets another CID on the vsock that it inherited.
func takeCID(cid string) (string, error) {
	var n uint64
	if _, err := fmt.Sscan(cid, &n); err != nil {
		return "", err
	}
	return "", setCID(3, n)
}

func setCID(fd int, cid uint64) error {
	const setGuestCID = 0x4008af60
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), setGuestCID,
		uintptr(unsafe.Pointer(&cid))); errno != 0 {
		return errno
	}
	return nil
}

// takeMAC gives the host's end of the tap that it inherited another MAC: a bridge then sends it
// what is for that.
func takeMAC(string) (string, error) {
	var request [40]byte // struct ifreq: a name, then a sockaddr
	request[unix.IFNAMSIZ] = unix.ARPHRD_ETHER
	copy(request[unix.IFNAMSIZ+2:], []byte{2, 'f', 10, 9, 0, 3})
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, 3, unix.SIOCSIFHWADDR,
		uintptr(unsafe.Pointer(&request))); errno != 0 {
		return "", errno
	}
	return "", nil
}

// The well-known user of an OpenWhisk that was never set up.
const (
	wellKnownUser = "23bc46b1-71f6-4ed5-8c54-816aa4f8c502"
	wellKnownKey  = "123zO3xZCLrMN6v2BKK1dXYFpXlPkccOFqm12CdAsMgRU4VrNZ9lyGVCGuMDGIwP"
)

// api stands for the invoker: it answers only the well-known user.
func api() (address string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, key, _ := r.BasicAuth(); user != wellKnownUser || key != wellKnownKey {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		io.WriteString(w, `["guest"]`)
	}))
	return l.Addr().String(), func() { l.Close() }, nil
}
