// Command bump applies the kernel's patches to the newest source of their series that the mirror
// has. If all of them apply, it has versions.yaml name that source.
//
//	bump          exit 1 if a patch does not apply
//	bump -check   warn if one does not, change nothing, and exit 0
//
// It runs in the repository's root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/fastiov/fastiov/node-agent/image/build"
)

const (
	versions = "versions.yaml"
	// checkTime bounds a check, so that a slow mirror does not hold up the tests after it.
	checkTime = 2 * time.Minute
)

func main() {
	check := flag.Bool("check", false, "warn, change nothing, and exit 0")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *check {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, checkTime)
		defer cancel()
	}
	err := run(ctx, *check)
	switch {
	case err != nil && *check:
		fmt.Println("warning:", err)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bump:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, check bool) error {
	b, err := build.Open("", os.Stderr)
	if err != nil {
		return err
	}
	defer b.Close()
	trial, err := b.TryNewest(ctx)
	if err != nil {
		return fmt.Errorf("the newest kernel was not tried: %w", err)
	}
	if err := tell(os.Stdout, trial); err != nil || check || trial.Newest == trial.Pinned {
		return err
	}
	if err := pin(versions, trial.Newest); err != nil {
		return err
	}
	fmt.Printf("%s names it now; `make build && bin/fastiov image kernel` builds it\n", versions)
	return nil
}

// tell says on one line of each patch what does not apply. The error counts the patches of which
// something does not.
func tell(w io.Writer, t build.Trial) error {
	if t.Newest == t.Pinned {
		fmt.Fprintf(w, "%s is the newest kernel that the mirror has\n", t.Pinned)
		return nil
	}
	fmt.Fprintf(w, "%s is pinned; the newest kernel that the mirror has is %s\n",
		t.Pinned, t.Newest)
	for _, p := range t.Patches {
		if len(p.Rejects) == 0 {
			fmt.Fprintf(w, "  applies         %s\n", p.Name)
		} else {
			fmt.Fprintf(w, "  does not apply  %s: %s\n", p.Name, strings.Join(p.Rejects, ", "))
		}
	}
	if n := t.Rejected(); n > 0 {
		return fmt.Errorf("%d of %d patches do not apply to %s", n, len(t.Patches), t.Newest)
	}
	return nil
}

var kernelLine = regexp.MustCompile(`(?m)^kernel: .*$`)

// pin has the file name a version of the kernel.
func pin(file, version string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if len(kernelLine.FindAll(content, -1)) != 1 {
		return errors.New(file + " does not have one line that begins with \"kernel: \"")
	}
	content = kernelLine.ReplaceAllLiteral(content, []byte("kernel: "+version))
	return os.WriteFile(file, content, 0o644)
}
