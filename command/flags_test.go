package command

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/command/settings"
)

// run returns the error of a command line.
func run(t *testing.T, words ...string) error {
	t.Helper()
	root := rootCmd()
	root.SetArgs(words)
	root.SetOut(&bytes.Buffer{})
	root.SetErr(&bytes.Buffer{})
	t.Setenv(settings.FileVariable, settings.NoFile)
	return root.ExecuteContext(t.Context())
}

// A command that is used wrongly says how it is used.
func TestWrongUse(t *testing.T) {
	for line, want := range map[string][]string{
		"logs":                    {"received 0", "`fastiov logs ID"},
		"connect x":               {"received 1", "`fastiov connect ID PORT"},
		"up it":                   {"`fastiov up"},
		"user create":             {"`fastiov user create"},
		"up --nonsense":           {"--nonsense", "`fastiov up --help`"},
		"config --keep-alive 10":  {`"10" is not a duration`, "10m"},
		"config --keep-alive=-5m": {`"-5m" is not a duration of 0 or more`},
		"config --memory=-5":      {`"-5" is not a whole number of 0 or more`},
		"config --log-level=loud": {`"loud"`, "debug"},
	} {
		err := run(t, strings.Fields(line)...)
		for _, words := range want {
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v lacks %s", line, err, words)
			}
		}
	}
}

// A password is refused before it stands on the command line of another process, and is not shown.
func TestAPasswordInAURL(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	for key, content := range map[string]string{
		"invoker.store":   "invoker: {store: 'redis://:hunter2@127.0.0.1:1'}",
		"cluster.couchdb": "cluster: {couchdb: 'http://a:hunter2@127.0.0.1:1/x'}",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := upCmd()
		if err := cmd.ParseFlags([]string{"--config", file}); err != nil {
			t.Fatal(err)
		}
		err := settings.Load(cmd, keys())
		if err == nil || !strings.Contains(err.Error(), key+": it has a password in it") ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", key, err)
		}
	}
	secret := func(change func(*busFlags)) busFlags {
		b := busFlags{kafka: "kafka://a:1", couchdb: "http://admin@couch:5984/x"}
		change(&b)
		return b
	}
	for _, b := range []busFlags{
		secret(func(b *busFlags) { b.kafka = "u:hunter2@h:1" }),
		secret(func(b *busFlags) { b.kafka = "kafka://u:hunter2@h:1" }),
		secret(func(b *busFlags) { b.couchdb = "a:hunter2@h/x" }),
	} {
		if _, _, err := b.parse(); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%+v: %v", b, err)
		}
	}
}

// A command leaves its flags as they were given. Else a reload would find that they have changed.
func TestUpChangesNoFlag(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := upCmd()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs([]string{"--foreground", "--run-dir", filepath.Join(file, "nowhere")})
	if err := cmd.ExecuteContext(t.Context()); err == nil {
		t.Fatal("it is up")
	}
	if user := cmd.Flag("invoker-user").Value.String(); user != "" {
		t.Errorf("--invoker-user has become %s", user)
	}
}

// The node of a testbed is at the usual run directory: another one, which later commands would look
// for, is refused.
func TestARunDirectoryIsNoneOfATestbeds(t *testing.T) {
	for dir, refused := range map[string]bool{usualRunDir + "/": false, "/run/other": true} {
		cmd := upCmd()
		if err := cmd.ParseFlags([]string{"--run-dir", dir, "--memory", "1024"}); err != nil {
			t.Fatal(err)
		}
		words, err := wordsAway(cmd)
		if (err != nil) != refused || strings.Contains(strings.Join(words, " "), "run-dir") {
			t.Errorf("with %s the testbed's node is given %q: %v", dir, words, err)
		}
	}
}

// A socket that may not be opened does not mean that nothing is up.
func TestDownOfSomebodyElse(t *testing.T) {
	if !errors.Is(notOfGroup("x"), os.ErrPermission) {
		t.Error("a socket of others is not told from one that is not there")
	}
}

// A node's builder is killed when the node ends, so it has apt install nothing.
func TestANodesBuilderInstallsNothing(t *testing.T) {
	words, err := builder()
	if err != nil {
		t.Fatal(err)
	}
	cmd, words, err := rootCmd().Find(append(words[1:], "guest"))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.ParseFlags(words); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"json", "no-install"} {
		if f := cmd.Flag(flag); f == nil || f.Value.String() != "true" {
			t.Errorf("%s is called without --%s", cmd.CommandPath(), flag)
		}
	}
	if left := cmd.Flags().Args(); len(left) != 1 || left[0] != "guest" {
		t.Errorf("%s makes %q", cmd.CommandPath(), left)
	}
}
