package settings

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// values holds the flags of a command of the test.
type values struct {
	dir, store string
	memory     int
	huge       bool
	wait       time.Duration
	pfs        []string
}

func command(name string) (*cobra.Command, *values) {
	var v values
	cmd := &cobra.Command{Use: name}
	Add(cmd, Section{"node", "this machine"}, func(f *pflag.FlagSet) {
		f.StringVar(&v.dir, "run-dir", "/run/x", "where all is")
		f.IntVar(&v.memory, "memory", 0, "how much")
		f.BoolVar(&v.huge, "node-huge", false, "pages")
		f.StringSliceVar(&v.pfs, "pf", []string{"igb"}, "devices")
	})
	Add(cmd, Section{"log", "the log"}, func(f *pflag.FlagSet) {
		f.DurationVar(&v.wait, "log-wait", time.Minute, "how long")
		f.StringVar(&v.store, "store", "", "where it is kept")
		TakesEffect(f, BySIGHUP, "log-wait")
		TakesEffect(f, "at once", "store")
	})
	return cmd, &v
}

func known() []Key {
	cmd, _ := command("known")
	return Keys(cmd)
}

func fileOf(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// load loads a command that was given a file and flags.
func load(t *testing.T, content string, flags ...string) (*cobra.Command, *values, error) {
	t.Helper()
	cmd, v := command("it")
	if err := cmd.ParseFlags(append(flags, "--config="+fileOf(t, content))); err != nil {
		t.Fatal(err)
	}
	return cmd, v, Load(cmd, known())
}

func TestAFlagGoesBeforeAVariableAndThatBeforeTheFile(t *testing.T) {
	t.Setenv("FASTIOV_NODE_MEMORY", "2")
	t.Setenv("FASTIOV_NODE_PF", "a,b")
	t.Setenv("FASTIOV_LOG_WAIT", "2s")
	cmd, v, err := load(t, "node:\n  run-dir: /file\n  memory: 1\n  huge: true\nlog: {wait: 1s}\n",
		"--log-wait=3s")
	if err != nil {
		t.Fatal(err)
	}
	if v.dir != "/file" || !v.huge || v.memory != 2 || v.wait != 3*time.Second ||
		!slices.Equal(v.pfs, []string{"a", "b"}) || v.store != "" {
		t.Errorf("%+v", *v)
	}
	var from []string
	for _, k := range Keys(cmd) {
		from = append(from, k.String()+" "+filepath.Base(k.from()))
	}
	want := []string{"node.run-dir c.yaml:2", "node.memory FASTIOV_NODE_MEMORY",
		"node.huge c.yaml:4", "node.pf FASTIOV_NODE_PF", "log.wait --log-wait", "log.store default"}
	if !slices.Equal(from, want) {
		t.Errorf("%q, want %q", from, want)
	}
}

// What is set to its default counts as not given; it comes from there all the same.
func TestADefaultThatIsGivenIsTheDefault(t *testing.T) {
	cmd, _, err := load(t, "node: {run-dir: /run/x, pf: [igb]}\nlog:\n  wait: 60s\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range Keys(cmd) {
		if k.flag.Changed {
			t.Errorf("%s has changed", k)
		}
	}
	if from := Keys(cmd)[0].from(); !strings.HasSuffix(from, "c.yaml:1") {
		t.Errorf("it comes from %s", from)
	}
}

func TestEveryMistakeIsNamed(t *testing.T) {
	t.Setenv("FASTIOV_NODE_HUGE", "perhaps")
	_, v, err := load(t, `node:
  memroy: 5
  memory: much
  run-dir: [/a, /b]
  run-dir: /c
  pf: {igb: 1}
  store: /s
log:
  wait: 10
  store: ~
wait: 7s
nodes: [1]
`)
	if err == nil {
		t.Fatal("it is taken")
	}
	want := []string{
		":2: there is no key node.memroy; the nearest is node.memory",
		`:3: node.memory: "much" is not a whole number`,
		":4: node.run-dir takes one value, not a list",
		":5: run-dir is in line 4 already",
		":6: node.pf must be a value or a list of values",
		":7: there is no key node.store; the nearest is log.store",
		`:9: log.wait: "10" is not a duration`,
		":10: log.store has no value",
		":11: there is no key wait; the nearest is log.wait",
		":12: nodes must hold keys",
		`FASTIOV_NODE_HUGE: node.huge: "perhaps" is not true or false`,
	}
	for _, said := range want {
		if !strings.Contains(err.Error(), said) {
			t.Errorf("not said: %s", said)
		}
	}
	if lines := strings.Count(err.Error(), "\n") + 1; lines != len(want) {
		t.Errorf("%d mistakes, want %d:\n%v", lines, len(want), err)
	}
	if v.memory != 0 {
		t.Errorf("a wrong value was set: %+v", *v)
	}
}

func TestWhatIsRightIsSetBesideMistakes(t *testing.T) {
	if _, v, err := load(t, "node: {run-dir: /a, memory: x}\n"); err == nil || v.dir != "/a" {
		t.Error(err, v)
	}
}

func TestFilesThatHoldNoKeys(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "node:\n", "{}\n"} {
		if _, _, err := load(t, content); err != nil {
			t.Errorf("%q: %v", content, err)
		}
	}
	for content, want := range map[string]string{
		"nodes:\n": "no section nodes", "nodes: {}\n": "no section nodes",
		"node: [": "not YAML", "a: {}\n---\nb: {}\n": "more than one document",
		"- 1\n": "must hold keys",
	} {
		if _, _, err := load(t, content); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", content, err)
		}
	}
	cmd, _ := command("it")
	if err := cmd.ParseFlags([]string{"--config=/nonexistent"}); err != nil {
		t.Fatal(err)
	}
	if err := Load(cmd, known()); err == nil {
		t.Error("a file that was named is absent, and that is no mistake")
	}
}

func TestStrangers(t *testing.T) {
	t.Setenv("FASTIOV_NODE_MEMROY", "1")
	t.Setenv("FASTIOV_NODE_MEMORY", "1")
	t.Setenv("FASTIOV_OTHERS_X", "1")
	t.Setenv("FASTIOV_CONFIG", "/dev/null")
	others := []string{"FASTIOV_OTHERS_", "FASTIOV_TEST_", "FASTIOV_CI", "FASTIOV_CACHE"}
	found := strings.Join(Strangers(known(), others...), "\n")
	want := "FASTIOV_NODE_MEMROY configures nothing; the nearest is FASTIOV_NODE_MEMORY"
	if found != want {
		t.Errorf("%q, want %q", found, want)
	}
}

// What Show writes is a file, but for passwords.
func TestWhatIsShownIsAFile(t *testing.T) {
	const secret = "redis://:hunter2@127.0.0.1:1"
	cmd, v, err := load(t, "node: {run-dir: 'yes', pf: ['a b', '1']}\n",
		"--store="+secret, "--memory=7")
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	Show(&shown, Keys(cmd))
	text := shown.String()
	if strings.Contains(text, "hunter2") || !strings.Contains(text, "redis://:xxxxx@") {
		t.Error(text)
	}
	_, again, err := load(t, text)
	if err != nil {
		t.Fatal(err)
	}
	if again.dir != v.dir || again.memory != 7 || again.wait != v.wait ||
		!slices.Equal(again.pfs, v.pfs) {
		t.Errorf("%+v, want %+v, of\n%s", *again, *v, text)
	}
}

func TestMistakesShowNoPassword(t *testing.T) {
	cmd, _ := command("it")
	refuse := func(text string) error { return os.NewSyscallError("no "+text, os.ErrInvalid) }
	Check(cmd.Flags(), refuse, "store")
	file := fileOf(t, "log: {store: 'http://u:hunter2@x'}")
	if err := cmd.ParseFlags([]string{"--config=" + file}); err != nil {
		t.Fatal(err)
	}
	if err := Load(cmd, Keys(cmd)); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

// Of a configuration that changes, what reloads follows; the rest is named.
func TestWhatReloads(t *testing.T) {
	running, v, err := load(t, "node: {memory: 1, pf: [a]}\nlog: {wait: 1s}\n")
	if err != nil {
		t.Fatal(err)
	}
	fresh, _, err := load(t, "node: {memory: 2, pf: [a]}\nlog: {store: /s}\n")
	if err != nil {
		t.Fatal(err)
	}
	stale, err := Changed(running, fresh)
	if err != nil || !slices.Equal(stale, []string{"node.memory", "log.store"}) ||
		v.memory != 1 || v.wait != time.Minute || v.store != "" {
		t.Error(stale, err, *v)
	}
}

func TestEdits(t *testing.T) {
	for pair, want := range map[string]int{
		"a a": 0, "ab b": 1, "ab abc": 1, "abc axc": 1, "kitten sitting": 3,
	} {
		a, b, _ := strings.Cut(pair, " ")
		if got := edits(a, b); got != want {
			t.Errorf("%s: %d, want %d", pair, got, want)
		}
	}
}

// Root follows no file that somebody else can write: its keys say what root runs.
func TestRootFollowsItsOwnFileAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to own a file and give it away")
	}
	for name, c := range map[string]struct {
		mode os.FileMode
		uid  int
		want string
	}{
		"its own":           {0o644, 0, ""},
		"writable by all":   {0o646, 0, "chmod go-w"},
		"writable by group": {0o664, 0, "chmod go-w"},
		"another's":         {0o600, 1000, "chown root"},
	} {
		t.Run(name, func(t *testing.T) {
			path := fileOf(t, "node: {memory: 7}")
			if err := errors.Join(os.Chmod(path, c.mode), os.Chown(path, c.uid, -1)); err != nil {
				t.Fatal(err)
			}
			cmd, v := command("it")
			if err := cmd.ParseFlags([]string{"--config=" + path}); err != nil {
				t.Fatal(err)
			}
			err := Load(cmd, known())
			if c.want == "" && (err != nil || v.memory != 7) {
				t.Errorf("%d MiB, %v", v.memory, err)
			}
			if c.want != "" && (err == nil || v.memory != 0 ||
				!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%d MiB, %v, want %q", v.memory, err, c.want)
			}
		})
	}
	cmd, _ := command("it")
	if err := cmd.ParseFlags([]string{"--config=" + NoFile}); err != nil {
		t.Fatal(err)
	}
	if err := Load(cmd, known()); err != nil {
		t.Errorf("no file: %v", err)
	}
}

// A password is masked to its end, whatever is in it or in the name before it.
func TestMasked(t *testing.T) {
	for _, password := range []string{"hunter2", "hun@ter2", "hun/ter2", "hun ter2", "hun:t@er 2"} {
		for _, before := range []string{"", "u", "u@corp.example"} {
			where := "redis://" + before + ":" + password + "@127.0.0.1:1"
			want := "redis://" + before + ":xxxxx@127.0.0.1:1"
			if got := Masked(where); got != want {
				t.Errorf("%s becomes %s", where, got)
			}
		}
	}
}

// No time is negative, and no number whose default is not. Flags and the file say it alike.
func TestWhatMayNotBeNegative(t *testing.T) {
	const why = "%q is not %s"
	for flag, wrong := range map[string][2]string{
		"log-wait": {"-1s", "a duration of 0 or more"}, "memory": {"-1", "a whole number of 0 or more"},
	} {
		cmd, v := command("it")
		want := fmt.Sprintf(why, wrong[0], wrong[1])
		err := cmd.ParseFlags([]string{"--" + flag + "=" + wrong[0]})
		if err == nil || !strings.Contains(err.Error(), want) || v.memory < 0 || v.wait < 0 {
			t.Errorf("--%s: %v, %+v", flag, err, v)
		}
	}
	_, _, err := load(t, "node: {memory: -1}\nlog: {wait: -1s}\n")
	if err == nil || strings.Count(err.Error(), "is not a") != 2 {
		t.Error(err)
	}
}
