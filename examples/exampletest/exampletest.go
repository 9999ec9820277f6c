// Package exampletest has the program that runs in the sandboxes of the examples' tests.
package exampletest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk/echo"
)

// argument has a test's binary run the program.
const argument = "example-program"

// Command returns the command that runs the program, in a test whose TestMain calls Main.
func Command() ([]string, error) {
	self, err := os.Executable()
	return []string{self, argument}, err
}

// Main runs the program where this process is one that Command has started, and then returns false.
//
// It is a runtime of OpenWhisk's, which returns its arguments and logs that it did. It is a program
// of plain HTTP as well: to GET / it answers that it is ready, and to any other request by the
// request's own body.
func Main() (tests bool) {
	if len(os.Args) < 2 || os.Args[1] != argument {
		return true
	}
	at := net.JoinHostPort(os.Getenv("ADDRESS"), os.Getenv("PORT"))
	fmt.Fprintln(os.Stderr, http.ListenAndServe(at, program()))
	return false
}

func program() http.Handler {
	runtime := echo.Handler(func(status, _ int) {
		fmt.Printf("answered %d\n%s\n", status, openwhisk.Sentinel)
		fmt.Fprintln(os.Stderr, openwhisk.Sentinel)
	})
	mux := http.NewServeMux()
	mux.Handle("POST /init", runtime)
	mux.Handle("POST /run", runtime)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // it answers while it reads
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		_, _ = io.Copy(w, r.Body)
	})
	return mux
}
