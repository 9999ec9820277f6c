package settings

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"gopkg.in/yaml.v3"
)

// An entry is a key as the file has it, with its values: one, or those of a list. A section without
// keys is an entry, too.
type entry struct {
	key       string
	line      int
	values    []string
	isList    bool
	isSection bool
}

// Mistakes are all that is wrong with a configuration.
type Mistakes []string

func (m Mistakes) Error() string { return strings.Join(m, "\n") }

// readFile returns the entries of a file, and what is wrong with its form.
func readFile(path string) (entries []entry, wrong Mistakes, err error) {
	content, err := readTrusted(path)
	if err != nil {
		return nil, nil, err
	}
	var document, more yaml.Node
	reader := yaml.NewDecoder(bytes.NewReader(content))
	if err := reader.Decode(&document); err == io.EOF {
		return nil, nil, nil
	} else if err != nil {
		why := strings.TrimPrefix(err.Error(), "yaml: ")
		return nil, nil, fmt.Errorf("%s is not YAML: %s", path, why)
	}
	if err := reader.Decode(&more); err != io.EOF {
		return nil, nil, fmt.Errorf("%s has more than one document; write all into the first", path)
	}
	f := form{path: path}
	f.each(document.Content[0], "the file", func(section *yaml.Node, name string) {
		if section.Kind == yaml.ScalarNode && section.Tag != "!!null" {
			f.add(name, section) // a key without its section
			return
		}
		if len(section.Content) == 0 {
			f.entries = append(f.entries, entry{key: name, line: section.Line, isSection: true})
		}
		f.each(section, name, func(value *yaml.Node, key string) { f.add(name+"."+key, value) })
	})
	return f.entries, f.wrong, nil
}

// readTrusted reads a file. Root reads none that somebody else can write.
func readTrusted(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	owner, is := info.Sys().(*syscall.Stat_t)
	switch {
	case os.Geteuid() != 0 || path == NoFile || !is:
	case owner.Uid != 0:
		return nil, fmt.Errorf("%s is user %d's, and root follows its own alone: chown root %s",
			path, owner.Uid, path)
	case info.Mode()&0o022 != 0:
		return nil, fmt.Errorf("%s can be written by others than root: chmod go-w %s", path, path)
	}
	return io.ReadAll(file)
}

// A form takes a file apart.
type form struct {
	path    string
	entries []entry
	wrong   Mistakes
}

func (f *form) mistake(line int, format string, args ...any) {
	f.wrong = append(f.wrong, fmt.Sprintf("%s:%d: ", f.path, line)+fmt.Sprintf(format, args...))
}

// each visits the members of a mapping. One without any may be left empty.
func (f *form) each(node *yaml.Node, what string, visit func(value *yaml.Node, key string)) {
	if node.Tag == "!!null" {
		return
	}
	if node.Kind != yaml.MappingNode {
		f.mistake(node.Line, "%s must hold keys, each with a value", what)
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if first := lines[key.Value]; first != 0 {
			f.mistake(key.Line, "%s is in line %d already", key.Value, first)
			continue
		}
		lines[key.Value] = key.Line
		visit(node.Content[i+1], key.Value)
	}
}

func (f *form) add(key string, value *yaml.Node) {
	e := entry{key: key, line: value.Line}
	switch nodes := []*yaml.Node{value}; {
	case value.Kind == yaml.SequenceNode:
		nodes, e.isList = value.Content, true
		fallthrough
	case value.Kind == yaml.ScalarNode:
		for _, node := range nodes {
			if node.Kind != yaml.ScalarNode || node.Tag == "!!null" {
				f.mistake(node.Line, "%s has no value; leave the key out to have its default", key)
				return
			}
			e.values = append(e.values, node.Value)
		}
	default:
		f.mistake(value.Line, "%s must be a value or a list of values", key)
		return
	}
	f.entries = append(f.entries, e)
}

// nearest returns the word that a mistyped one may stand for. A key in the wrong section is near.
func nearest(word string, words []string) string {
	return slices.MinFunc(words, func(a, b string) int {
		return cmp.Compare(distance(word, a), distance(word, b))
	})
}

func distance(a, b string) int {
	name := func(key string) string { return key[strings.Index(key, ".")+1:] }
	return min(edits(a, b), edits(name(a), name(b))+1)
}

// edits returns how many letters have to be added, removed or replaced (Levenshtein).
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := corner
			if a[i] != b[j] {
				replaced++
			}
			corner = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// absent reports whether an error means that the file is not there.
func absent(err error) bool { return errors.Is(err, os.ErrNotExist) }
