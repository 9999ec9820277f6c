package containerd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// Processes that do nothing but give birth and end, as in a fork bomb, do not outrun their end.
func TestNoProcessOutrunsItsEnd(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("cgroups are root's to make")
	}
	const procs = "cgroup.procs"
	most := int64(1 << 14)
	g := group{"/fastiov-test-outrun", specs.LinuxResources{
		Pids: &specs.LinuxPids{Limit: &most}}}
	if err := g.make(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		g.kill()
		g.remove()
	}()
	dir := filepath.Join(cgroupMount, "pids", g.path)
	if unified() {
		dir = filepath.Join(cgroupMount, g.path)
	}
	in := func(file string) []string {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(text))
	}
	enter := "for f in " + cgroupMount + "/*" + g.path + "/" + procs + " " + cgroupMount + g.path +
		"/" + procs + "; do test -w $f && echo $$ > $f; done; "
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	hop := filepath.Join(t.TempDir(), "hop") // as long as the test lives
	if err := os.WriteFile(hop, []byte(`kill -0 $1 && sh $0 $1 &`), 0o600); err != nil {
		t.Fatal(err)
	}
	bomb := exec.CommandContext(ctx, "sh", "-c", enter+fmt.Sprintf(
		"for n in 1 2 3 4 5 6 7 8 9 10; do sh %s %d; done", hop, os.Getpid()))
	if err := bomb.Run(); err != nil {
		t.Fatal(err)
	}
	hops := map[string]bool{}
	for len(hops) < 100 && ctx.Err() == nil { // a list has few: most are gone before they are read
		for _, process := range in(procs) {
			hops[process] = true
		}
	}
	if len(hops) < 100 {
		t.Fatalf("%d processes in a minute", len(hops))
	}
	g.kill()
	for until := time.Now().Add(time.Minute); in("pids.current")[0] != "0"; {
		if time.Sleep(time.Millisecond); time.Now().After(until) {
			t.Fatalf("after their end %s processes live on", in("pids.current")[0])
		}
	}
}

// A request for CPU time takes no more than memory gives, whatever a tenant writes, and the shims
// come before all sandboxes.
func TestSharesOfTheCPU(t *testing.T) {
	d := &Driver{Config: Config{Namespace: "x"}}
	shares := func(spec sandbox.Spec) uint64 { return *d.cgroup(spec).limits.CPU.Shares }
	for _, c := range []struct{ memory, request, want int }{
		{256, 0, 1024}, {512, 0, 2048}, {256, 125, 128}, {256, 1, 2}, {256, 1_000_000, 1024},
	} {
		spec := sandbox.Spec{ID: "a", MemoryMiB: c.memory}
		spec.CPU.Request = c.request
		if got := shares(spec); got != uint64(c.want) {
			t.Errorf("%+v: %d", c, got)
		}
	}
	if got := *d.shims().limits.CPU.Shares; got != mostShares {
		t.Errorf("the shims have %d", got)
	}
}
