package rules

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	root   = ".."
	module = "github.com/fastiov/fastiov"
)

type pkg struct {
	ImportPath, Name, Doc                    string
	Imports, TestImports, XTestImports, Deps []string
}

// short returns the import path without the module's.
func (p pkg) short() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

var packages = sync.OnceValues(func() ([]pkg, error) {
	list := exec.Command("go", "list", "-e",
		"-json=ImportPath,Name,Doc,Imports,TestImports,XTestImports,Deps", "./...")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, err
	}
	var all []pkg
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

func eachPackage(t *testing.T, check func(p pkg)) {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		check(p)
	}
}

// sources calls visit with every file of the repository that is not generated, by its path from the
// root.
func sources(t *testing.T, visit func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := entry.Name(); {
		case entry.IsDir() && slices.Contains(
			[]string{".git", "bin", "node_modules", "testdata", "__pycache__"}, name):
			return fs.SkipDir
		case entry.Type().IsRegular() && !strings.HasSuffix(name, ".pb.go"):
			visit(strings.TrimPrefix(path, root+"/"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	eachPackage(t, func(p pkg) {
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command "
		}
		if p.Name != "" && !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s has no comment that begins with %q", p.short(), want)
		}
	})
}

func TestNothingIsNamedForNothing(t *testing.T) {
	vague := regexp.MustCompile(`(^|/)(utils?|common|managers?|helpers?)(/|$)`)
	eachPackage(t, func(p pkg) {
		if vague.MatchString(p.short()) || vague.MatchString(p.Name) {
			t.Errorf("package %s: name it for what it holds", p.short())
		}
	})
	sources(t, func(path string) {
		if vague.MatchString(filepath.Dir(path)) {
			t.Errorf("%s: name its folder for what it holds", path)
		}
	})
}

func TestNoReplaceInGoMod(t *testing.T) {
	for line := range strings.Lines(read(t, "go.mod")) {
		if strings.HasPrefix(strings.TrimSpace(line), "replace") {
			t.Errorf("go.mod: %s", strings.TrimSpace(line))
		}
	}
}

// Four floors: e2e and cmd over command, command over invoker, bench, dashboards and examples,
// these over node-agent and testbed. Imports that are not listed here are free.
var barred = []struct{ from, to, except string }{
	{"node-agent", "invoker", ""},
	{"node-agent", "bench", ""},
	{"testbed", "invoker", ""},
	{"testbed", "bench", ""},
	{"invoker", "bench", ""},
	{"invoker", "dashboards", ""},
	{"node-agent", "dashboards", ""},
	{"testbed", "dashboards", ""},
	{"bench", "dashboards", ""},
	{"invoker", "testbed", ""},
	{"examples", "testbed", ""},
	{"examples", "bench", ""},
	{"examples", "dashboards", ""},
	{"invoker", "node-agent", "node-agent/api"},
	{"cmd/fastiov", "", "command"},
	{"cmd/fastiov-cni", "", "node-agent/cni"},
}

// Rooms that only the listed folders may import: nothing uses tests that run the product, and
// nothing below the command uses it.
var importers = map[string][]string{
	"cmd":     nil,
	"e2e":     nil,
	"command": {"cmd", "e2e"},
	// Tests of the command put the examples into its tables.
	"examples": {"command"},
	// An agent runs no apt: it starts a builder, as the command does that it is part of.
	"node-agent/image/build": {"command", "testbed", "bench", "e2e", "kernel-mod/bump"},
}

func within(path, folder string) bool {
	return folder == "" || path == folder || strings.HasPrefix(path, folder+"/")
}

func TestNoArrowRunsBackUp(t *testing.T) {
	eachPackage(t, func(p pkg) {
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			to, ours := strings.CutPrefix(imported, module+"/")
			for _, bar := range barred {
				if ours && within(p.short(), bar.from) && within(to, bar.to) &&
					(bar.except == "" || !within(to, bar.except)) {
					barred := cmp.Or(bar.to, "anything but "+bar.except)
					t.Errorf("%s imports %s: %s may not see %s", p.short(), to, bar.from, barred)
				}
			}
			for room, allowed := range importers {
				inside := func(room string) bool { return within(p.short(), room) }
				if ours && within(to, room) && !inside(room) &&
					!slices.ContainsFunc(allowed, inside) {
					by := strings.Join(append(slices.Clone(allowed), "nothing else"), ", ")
					t.Errorf("%s imports %s: %s is imported by %s", p.short(), to, room, by)
				}
			}
		}
	})
}

// A wing is an API of the invoker. Wings are equals, and their common rooms import none of them.
var wings = []string{"invoker/openwhisk", "invoker/knative", "examples/api"}

// A wing's packages are imported by the wing itself and by the folders that put the product
// together, measure it or show it. Within a wing, no room imports the API above it.
func TestOnlyWhatIsAboveKnowsAWing(t *testing.T) {
	above := []string{"command", "e2e", "bench", "dashboards"}
	eachPackage(t, func(p pkg) {
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			to, _ := strings.CutPrefix(imported, module+"/")
			for _, wing := range wings {
				inside := within(p.short(), wing)
				isAbove := slices.ContainsFunc(above,
					func(folder string) bool { return within(p.short(), folder) })
				switch {
				case within(to, wing) && !inside && !isAbove:
					t.Errorf("%s imports %s: only %s may see what is in %s",
						p.short(), to, strings.Join(above, ", "), wing)
				case to == wing && inside && p.short() != wing:
					t.Errorf("%s imports %s, which is above it", p.short(), to)
				}
			}
		}
	})
}

// A program of ours has none of the examples: its tables hold what it needs.
func TestNoProgramHasAnExample(t *testing.T) {
	eachPackage(t, func(p pkg) {
		isExample := func(path string) bool { return within(path, module+"/examples") }
		if p.Name == "main" && slices.ContainsFunc(p.Deps, isExample) {
			t.Errorf("%s holds an example: only tests put one into a table", p.short())
		}
	})
}

// The package testing brings flags and a way to tell a test from the product.
func TestNoProgramLinksTesting(t *testing.T) {
	imports := map[string]bool{}
	eachPackage(t, func(p pkg) { imports[p.ImportPath] = slices.Contains(p.Imports, "testing") })
	eachPackage(t, func(p pkg) {
		if p.Name != "main" || !slices.Contains(p.Deps, "testing") {
			return
		}
		by := slices.DeleteFunc(slices.Clone(p.Deps),
			func(dep string) bool { return !imports[dep] })
		t.Errorf("%s links testing, by %q: put what tests alone need into a package of its own",
			p.short(), by)
	})
}

// The packages that may start processes, and which processes. No other package may: an exec on the
// cold-start path causes its tail.
var starters = map[string]string{
	"command":                       "itself, to go on in the background",
	"bench":                         "itself, to hold VFs",
	"bench/pull":                    "itself and containerd, whose pulls it measures",
	"bench/controlplane":            "itself, and a commit that git and make build, as the servers that it measures",
	"bench/scraper":                 "Prometheus, which scrapes what is measured",
	"bench/express":                 "itself, as hosts in network namespaces, what writes rules there, and the servers of a load",
	"testbed":                       "QEMU",
	"node-agent/image":              "the command that makes images",
	"node-agent/image/build":        "apt, dpkg-deb, depmod, make and go, when an artefact is built",
	"node-agent/image/oci":          "itself, confined, to unpack an image of a stranger",
	"node-agent/hypervisor/probe":   "QEMU, to prove KVM",
	"node-agent/hypervisor":         "QEMU, to ask it for its version and where its firmware is",
	"node-agent/sandbox/qemu":       "QEMU, in a jail",
	"node-agent/sandbox/jail":       "the VMM's launcher, and the dynamic loader, which lists libraries",
	"node-agent/beside":             "go, to build a program of ours for a test",
	"node-agent/sandbox/containerd": "containerd, where none runs",
	"node-agent/sandbox/bare":       "the VFIO program that stands for a VMM",
	"node-agent/guest/init":         "the runtime",

	"invoker/openwhisk/bus/kafkatest": "a Kafka broker, for the tests of the bus",
	"invoker/store/redis/redistest":   "a Redis, for the tests of what uses one",

	"examples/driver": "the program that is a sandbox, by the shell",

	"rules/record":            "go, to list what tests depend on",
	"functions/functionstest": "python3 and node, to run the functions on this machine",
}

func TestOnlyStartersStartProcesses(t *testing.T) {
	eachPackage(t, func(p pkg) {
		if _, allowed := starters[p.short()]; !allowed && slices.Contains(p.Imports, "os/exec") {
			t.Errorf("%s imports os/exec: only %s may start processes",
				p.short(), strings.Join(sortedKeys(starters), ", "))
		}
	})
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// In CI, a test may not be skipped because something installable is missing.
func TestNothingIsSkippedInCI(t *testing.T) {
	bare := regexp.MustCompile(`\.Skip\(err\)`)
	sources(t, func(path string) {
		text := read(t, path)
		if bare.MatchString(text) && !strings.Contains(text, "FASTIOV_CI") {
			t.Errorf("%s skips for an error: have it fail where FASTIOV_CI is set", path)
		}
	})
}

func TestFilesStayReadable(t *testing.T) {
	const most = 600
	sources(t, func(path string) {
		if slices.Contains([]string{".go", ".c", ".h", ".py", ".js", ".sh"}, filepath.Ext(path)) {
			if lines := strings.Count(read(t, path), "\n"); lines > most {
				t.Errorf("%s has %d lines; at most %d", path, lines, most)
			}
		}
	})
}
