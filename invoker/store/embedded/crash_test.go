package embedded

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/store/storetest"
	"github.com/fastiov/fastiov/leaks"
)

// crashing is set in the process that TestACrashLosesNothingPromised kills. It names the file and
// the round.
const crashing = "FASTIOV_TEST_STORE_CRASH"

func TestMain(m *testing.M) {
	if what := os.Getenv(crashing); what != "" {
		path, round, _ := strings.Cut(what, "|")
		s, err := Open(path, plenty, quiet)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		seed := uint64(len(round))
		storetest.Load(context.Background(), s, round, seed, os.Stdout)
		os.Exit(1)
	}
	leaks.Main(m)
}

// A process is killed in the middle of its work, again and again, over the same file. The page
// cache survives the process, so this shows that no moment of a kill is harmful; the fsyncs make
// sure that the disk has the data too.
func TestACrashLosesNothingPromised(t *testing.T) {
	const rounds = 25
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), "store")
	var all storetest.Losses
	for round := range rounds {
		log, crash := killedAfter(t, path, fmt.Sprint(round),
			time.Duration(random.IntN(120))*time.Millisecond)
		s := open(t, path)
		l := storetest.Account(t, s, log, crash, true)
		closeIt(t, s)
		kept(t, path)
		all.Finished += l.Finished
		all.InWindow += l.InWindow
		all.Late += l.Late
		all.Oldest = max(all.Oldest, l.Oldest)
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
	t.Logf(
		"%d records finished; lost within the window: %d, later: %d; the oldest had finished %v before",
		all.Finished, all.InWindow, all.Late, all.Oldest)
	if all.Finished == 0 {
		t.Error("nothing was tried")
	}
	// a stalled disk or scheduler stretches the window, but not by that much
	if all.Oldest > time.Second {
		t.Errorf("a record that had finished %v before a crash was lost", all.Oldest)
	}
}

// killedAfter runs the load in another process and kills it that long after its first
// acknowledgement.
func killedAfter(
	t *testing.T, path, round string, after time.Duration,
) (log io.Reader, crash time.Time) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), crashing+"="+path+"|"+round)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1)
	if _, err := io.ReadFull(out, first); err != nil {
		t.Fatalf("the load did not begin: %v", err)
	}
	killed := make(chan time.Time)
	time.AfterFunc(after, func() {
		now := time.Now()
		_ = child.Process.Kill()
		killed <- now
	})
	rest, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	crash = <-killed
	_ = child.Wait()
	return io.MultiReader(bytes.NewReader(first), bytes.NewReader(rest)), crash
}
