// A stand-in for a language runtime: it accepts on every address, logs, and tells at / what it finds around itself.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const sentinel = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX"

func main() {
	fmt.Println("runtime starts")
	http.HandleFunc("/", around)
	http.HandleFunc("/exit", func(http.ResponseWriter, *http.Request) {
		fmt.Fprintln(os.Stderr, "last words")
		os.Exit(3)
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8080", nil))
}

func around(w http.ResponseWriter, _ *http.Request) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	addresses, _ := net.InterfaceAddrs()
	host, _ := os.Hostname()
	stdout, err := os.OpenFile("/dev/stdout", os.O_WRONLY, 0)
	if err == nil {
		fmt.Fprintln(stdout, "by the device")
	}
	json.NewEncoder(w).Encode(map[string]string{
		"host": host, "addresses": fmt.Sprint(addresses), "env": strings.Join(os.Environ(), "\n"), "uid": fmt.Sprint(os.Getuid()),
		"hosts": read("/etc/hosts"), "resolv": read("/etc/resolv.conf"), "routes": read("/proc/net/route"), "mounts": read("/proc/mounts"),
		"time": time.Now().Format(time.RFC3339Nano), "marker": read("/marker"), "written": fmt.Sprint(os.WriteFile("/tmp/x", nil, 0o600)), "stdout": fmt.Sprint(err),
	})
	fmt.Print("no newline")
	fmt.Print(sentinel + "\n")
	fmt.Fprintln(os.Stderr, sentinel)
}
