package command

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/command/settings"
)

func TestGeneratedFilesAreFresh(t *testing.T) {
	for name, content := range Files() {
		have, err := os.ReadFile(filepath.Join("..", name))
		if err != nil || !bytes.Equal(have, content) {
			t.Errorf("%s is not what the keys make it (%v); run make generate", name, err)
		}
	}
}

// The default file names every key, and its values are the defaults.
func TestTheDefaultFileIsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "default.yaml")
	if err := os.WriteFile(file, []byte(settings.Default(keys())), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range configured() {
		of := cmd.Name()
		if err := cmd.ParseFlags([]string{"--config=" + file}); err != nil {
			t.Fatal(err)
		}
		if err := settings.Load(cmd, keys()); err != nil {
			t.Fatal(err)
		}
		var shown strings.Builder
		settings.Show(&shown, settings.Keys(cmd))
		if strings.Contains(shown.String(), "# default") {
			t.Errorf("%s has keys that the file leaves out:\n%s", of, &shown)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Changed && f.Name != "config" {
				t.Errorf("%s: the file's %s is not the default of --%s", of, f.Value, f.Name)
			}
		})
	}
	for line := range strings.Lines(settings.Default(keys())) {
		if len([]rune(line)) > 101 && strings.HasPrefix(strings.TrimSpace(line), "#") {
			t.Errorf("the line is too long: %s", line)
		}
	}
}

// Every word in the tree that begins with FASTIOV_ is a key's, a test's, CI's, or one of those
// listed.
func TestEveryVariableHasAUse(t *testing.T) {
	mentioned := regexp.MustCompile(`\bFASTIOV_[A-Z0-9_]+`)
	skipped := []string{".git", "bin", "node_modules"}
	wrongOnPurpose := regexp.MustCompile(`^../(command/|e2e/config_test.go)`)
	known := append(otherVariables, formerVariables...)
	err := filepath.WalkDir("..", func(path string, entry os.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // of a tool that runs meanwhile
			return nil
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains(skipped, entry.Name()):
			return filepath.SkipDir
		case !entry.Type().IsRegular() || wrongOnPurpose.MatchString(path):
			return nil
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		for _, name := range mentioned.FindAllString(string(content), -1) {
			t.Setenv(name, "") // as if a user had followed what is written there
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, stranger := range settings.Strangers(keys(), known...) {
		t.Error(stranger)
	}
}

// SIGHUP is the caller of again; e2e sends it.
func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("log: {level: error}\nnode: {memory: 100}\n")
	args := []string{"agent", "--config", file, "--dns", "10.0.0.1"}
	var n nodeFlags
	var logs logFlags
	cmd := &cobra.Command{Use: "agent"}
	n.register(cmd)
	logs.register(cmd)
	if err := cmd.ParseFlags(args[1:]); err != nil {
		t.Fatal(err)
	}
	if err := settings.Load(cmd, keys()); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	log := logs.open(&said)
	followed := 0
	again := newReload(cmd, &logs, log)
	also := []func() error{func() error { followed++; return nil }}

	log.Info("unheard")
	write("log: {level: info}\nnode: {memory: 200, image-registries: [a.example]}\n")
	again.again(args, also)
	for _, want := range []string{"was reloaded", "needs a restart\" key=node.memory"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("not said: %s, in\n%s", want, &said)
		}
	}
	if strings.Contains(said.String(), "unheard") || strings.Contains(said.String(), "node.dns") {
		t.Errorf("%s", &said)
	}
	allowed := n.registries.allowed
	if n.memoryMiB != 100 || followed != 1 || !slices.Equal(allowed, []string{"a.example"}) {
		t.Errorf("%d MiB, followed %d times, %q", n.memoryMiB, followed, allowed)
	}

	said.Reset()
	write("node: {image-registries: [b.example, a/b], listen: x, fastiov: q=1}\n" +
		"log: {level: loud}\ninvoker: {https: '443'}\n")
	again.again(args, also)
	for _, key := range []string{
		"log.level", "node.image-registries", "node.listen", "node.fastiov", "invoker.https",
	} {
		if !strings.Contains(said.String(), key+": ") {
			t.Errorf("no mistake in %s: %s", key, &said)
		}
	}
	if !strings.Contains(said.String(), "not reloaded") || followed != 1 ||
		n.registries.allowed[0] != "a.example" {
		t.Errorf("after a mistake: %s, %q", &said, n.registries.allowed)
	}
}

// An invoker that its agent has started hears of the log's level on its leash; the last one holds.
func TestAnInvokerFollowsTheLevelOfItsAgent(t *testing.T) {
	theirs, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	quiet := slog.New(slog.DiscardHandler)
	var logs logFlags
	l := &leash{bufio.NewReader(theirs), &logs}
	c := &companion{
		levels: make(chan string, 1), running: &running{leash: ours, ended: make(chan struct{})},
	}
	fmt.Fprintln(ours, begin)
	agent, err := l.await(t.Context(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	watching, stop := context.WithCancel(t.Context())
	watched := make(chan bool)
	go func() { watched <- c.watch(watching) }()
	for _, level := range []string{"warn", "debug"} {
		if err := c.logAt(level); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(10 * time.Second); logs.least.Level() != slog.LevelDebug; {
		if time.Now().After(end) {
			t.Fatalf("it logs at %v", logs.least.Level())
		}
		time.Sleep(time.Millisecond)
	}
	stop()
	if <-watched {
		t.Error("an invoker that runs has ended")
	}
	if words := c.words; len(words) == 0 || words[len(words)-1] != "--log-level=debug" {
		t.Errorf("started again, it would be told %q", words)
	}
	ours.Close()
	<-agent.Done()
}
