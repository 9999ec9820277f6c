// Command record keeps the result of a slow test tier: how many tests passed, and the hash of
// everything that they depend on. While that hash holds, the tier may be left out.
//
//	record RECORD TESTS MINUTES ./PACKAGE…   write RECORD; refused if a former run had more tests
//	record -holds RECORD ./PACKAGE…          say whether RECORD holds; exit 0 if it does
//
// It runs in the repository's root.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// besides returns what the tests of a tier depend on, besides their packages.
func besides(record string) []string {
	tier := strings.TrimSuffix(filepath.Base(record), ".json")
	return []string{"go.mod", "go.sum", "versions.yaml", ".ci/tier/" + tier}
}

// A Record is the content of a record's file.
type Record struct {
	Date     string   `json:"date"`
	Tests    int      `json:"tests"`
	Minutes  int      `json:"minutes"`
	Packages []string `json:"packages"`
	SHA256   string   `json:"sha256"`
}

func main() {
	said, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
	fmt.Println(said)
}

func run(args []string) (said string, err error) {
	if len(args) > 2 && args[0] == "-holds" {
		return holds(args[1], args[2:])
	}
	if len(args) > 3 {
		tests, errTests := strconv.Atoi(args[1])
		minutes, errMinutes := strconv.Atoi(args[2])
		if err := errors.Join(errTests, errMinutes); err != nil {
			return "", err
		}
		return write(args[0], tests, minutes, args[3:])
	}
	return "",
		errors.New("usage: record RECORD TESTS MINUTES ./PACKAGE…" +
			" or record -holds RECORD ./PACKAGE…")
}

func read(file string) (r Record, err error) {
	content, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	return r, err
}

func holds(file string, packages []string) (said string, err error) {
	r, err := read(file)
	if err != nil {
		return "", err
	}
	slices.Sort(packages)
	if !slices.Equal(r.Packages, packages) {
		return "", fmt.Errorf("%s is of other packages: %s", file, strings.Join(r.Packages, " "))
	}
	now, err := hash(file, packages)
	if err != nil {
		return "", err
	}
	if now != r.SHA256 {
		return "", fmt.Errorf("%s is of other sources", file)
	}
	return fmt.Sprintf("on %s %d tests passed in %d minutes on these very sources (%s)",
		r.Date, r.Tests, r.Minutes, file), nil
}

func write(file string, tests, minutes int, packages []string) (said string, err error) {
	former, err := read(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if tests < former.Tests {
		return "",
			fmt.Errorf("%d tests ran, and %s has %d; delete it if tests were taken out on purpose",
				tests, file, former.Tests)
	}
	slices.Sort(packages)
	r := Record{time.Now().UTC().Format(time.DateOnly), tests, minutes, packages, ""}
	if r.SHA256, err = hash(file, packages); err != nil {
		return "", err
	}
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	return file + " is written", os.WriteFile(file, append(content, '\n'), 0o644)
}

// hash covers each file in the folders of the packages, of their imports and of their tests'
// imports, except prose and the tests of what is imported. That is more than the tests depend on,
// and never less.
func hash(record string, packages []string) (string, error) {
	for _, p := range packages {
		if !strings.HasPrefix(p, "./") {
			return "", fmt.Errorf("%s: give a package as ./FOLDER, whose tests are in the hash", p)
		}
	}
	const ours = "{{if .Module}}{{if .Module.Main}}{{.Dir}}{{end}}{{end}}"
	list := append([]string{"list", "-deps", "-test", "-f", ours}, packages...)
	out, err := exec.Command("go", list...).Output()
	if err != nil {
		return "", fmt.Errorf("go list %s: %w", strings.Join(packages, " "), err)
	}
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	files := besides(record)
	for dir := range strings.FieldsSeq(string(out)) {
		of, err := filesOf(root, dir)
		if err != nil {
			return "", err
		}
		files = append(files, of...)
	}
	files = slices.DeleteFunc(files, func(file string) bool {
		return strings.HasSuffix(file, "_test.go") &&
			!slices.ContainsFunc(packages, func(tested string) bool {
				return strings.HasPrefix("./"+filepath.ToSlash(file), tested+"/")
			})
	})
	slices.Sort(files)
	sum := sha256.New()
	for _, file := range slices.Compact(files) {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", filepath.ToSlash(file), len(content), content)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// filesOf lists the files of a package's folder and of the folders below it, which contain embedded
// files and programs that a test builds. For the root it lists only the root folder's own files.
func filesOf(root, dir string) (files []string, err error) {
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && dir == root && name != root, entry.Name() == "rapid":
			return fs.SkipDir
		case !entry.Type().IsRegular() || strings.HasSuffix(name, ".md"),
			dir == root && filepath.Ext(name) != ".go":
			return nil
		}
		relative, err := filepath.Rel(root, name)
		files = append(files, relative)
		return err
	})
	return files, err
}
