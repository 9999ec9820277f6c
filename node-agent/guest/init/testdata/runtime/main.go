// A stand-in for a language runtime: it logs what it finds around itself and serves it, and each request is an activation.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/vishvananda/netlink"
)

const sentinel = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX"

func main() {
	found := json.NewEncoder(os.Stdout)
	if os.Getenv("EXIT") != "" {
		fmt.Fprint(os.Stderr, "last words")
		os.Exit(3)
	}
	found.Encode(around())
	if to := os.Getenv("DIAL"); to != "" {
		go func() { fmt.Println("dialled:", dial(to)) }()
	}
	if gate := os.Getenv("WAIT"); gate != "" {
		if err := awaitUp(gate); err != nil {
			log.Fatal(err)
		}
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(around())
		fmt.Print("activated by ", r.URL.Path, sentinel, "\n")
		fmt.Fprintln(os.Stderr, sentinel)
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe("127.0.0.1:8080", nil))
}

// dial connects once, and says what it hears, or why it hears nothing.
func dial(to string) string {
	conn, err := net.Dial("tcp", to)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	fmt.Fprintln(conn, conn.LocalAddr().(*net.TCPAddr).IP)
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return line[:len(line)-1]
}

// awaitUp returns when there is a network beside the loopback and the gate. It waits for the kernel
// to tell of addresses: a guest in which a program asks again and again does not idle.
func awaitUp(gate string) error {
	addresses, done := make(chan netlink.AddrUpdate), make(chan struct{})
	defer close(done)
	if err := netlink.AddrSubscribe(addresses, done); err != nil {
		return err
	}
	for !isUp(gate) {
		if _, ok := <-addresses; !ok {
			return errors.New("the kernel tells of no more addresses")
		}
	}
	return nil
}

// isUp says whether there is a network beside the loopback and the gate.
func isUp(gate string) bool {
	links, _ := net.Interfaces()
	for _, l := range links {
		if addresses, _ := l.Addrs(); len(addresses) > 0 && l.Name != gate && l.Name != "lo" {
			return true
		}
	}
	return false
}

func around() map[string]string {
	host, _ := os.Hostname()
	addresses, _ := net.InterfaceAddrs()
	return map[string]string{
		"greeting":  os.Getenv("GREETING"),
		"given":     read("/etc/app/deep/name") + read("/etc/app.conf"),
		"changed":   fmt.Sprint(os.WriteFile("/etc/app/other", nil, 0o600)),
		"host":      host,
		"uid":       fmt.Sprint(os.Getuid()),
		"addresses": fmt.Sprint(addresses),
		"hosts":     read("/etc/hosts"),
		"resolv":    read("/etc/resolv.conf"),
		"marker":    read("/marker"),
		"time":      time.Now().Format(time.RFC3339Nano),
		"tmp":       fmt.Sprint(os.WriteFile("/tmp/x", nil, 0o600)),
		"image":     fmt.Sprint(os.WriteFile("/marker", nil, 0o600)),
	}
}

func read(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
