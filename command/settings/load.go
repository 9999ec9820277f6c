package settings

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// DefaultFile is read if it is there; a file that was named must be.
const DefaultFile = "/etc/fastiov/fastiov.yaml"

const configFlag = "config"

// FileVariable names another file than DefaultFile.
const FileVariable = Prefix + "CONFIG"

// NoFile has nothing in it: all keys have their defaults.
const NoFile = "/dev/null"

// File returns the file that a command reads, and whether it was told to read that one.
func File(cmd *cobra.Command) (path string, named bool) {
	flag, _ := cmd.Flags().GetString(configFlag)
	path = cmp.Or(flag, os.Getenv(FileVariable))
	return cmp.Or(path, DefaultFile), path != ""
}

// Load sets the flags of a command that its command line left out, from the environment and from
// the file. All of both is checked, since known has the keys of other commands, too. The error
// names every mistake; what is right is set all the same. known is for this call alone: values are
// tried on its flags.
func Load(cmd *cobra.Command, known []Key) error {
	path, named := File(cmd)
	entries, wrong, err := readFile(path)
	if err != nil && (named || !absent(err)) {
		return fmt.Errorf("the configuration: %w", err)
	}
	l := loader{known: map[string]Key{}, wrong: wrong, found: map[string]found{}}
	for _, k := range known {
		l.known[k.String()] = k
		l.names = append(l.names, k.String())
	}
	for _, e := range entries {
		l.file(path, e)
	}
	for _, k := range known {
		if text, there := os.LookupEnv(k.variable()); there {
			l.variable(k, text)
		}
	}
	for _, k := range Keys(cmd) {
		if f, there := l.found[k.String()]; there && !k.flag.Changed {
			if err := k.set(f.values, f.from); err != nil {
				return err // the same value has been tried before
			}
		}
	}
	if len(l.wrong) > 0 {
		return l.wrong
	}
	return nil
}

type found struct {
	values []string
	from   string
}

type loader struct {
	known map[string]Key
	names []string
	found map[string]found
	wrong Mistakes
}

func (l *loader) file(path string, e entry) {
	from := fmt.Sprintf("%s:%d", path, e.line)
	if e.isSection {
		ofIt := func(key string) bool { return strings.HasPrefix(key, e.key+".") }
		if !slices.ContainsFunc(l.names, ofIt) {
			l.wrong = append(l.wrong, fmt.Sprintf("%s: there is no section %s", from, e.key))
		}
		return
	}
	k, there := l.known[e.key]
	if !there {
		l.wrong = append(l.wrong, fmt.Sprintf("%s: there is no key %s; the nearest is %s",
			from, e.key, nearest(e.key, l.names)))
		return
	}
	if _, list := k.list(); e.isList && !list {
		l.wrong = append(l.wrong, fmt.Sprintf("%s: %s takes one value, not a list", from, e.key))
		return
	}
	l.try(k, e.key, e.values, from)
}

func (l *loader) variable(k Key, text string) {
	values := []string{text}
	if _, list := k.list(); list {
		values = strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
	}
	l.try(k, k.String(), values, k.variable())
}

func (l *loader) try(k Key, key string, values []string, from string) {
	if err := k.set(values, from); err != nil {
		l.wrong = append(l.wrong, fmt.Sprintf("%s: %s: %s", from, key, Masked(err.Error())))
		return
	}
	l.found[key] = found{values, from}
}

// Strangers returns the variables with our prefix that no key has, each with the nearest one that a
// key has. The others have a use elsewhere: names, or what names begin with, up to an underscore.
func Strangers(known []Key, others ...string) (found []string) {
	var names []string
	for _, k := range known {
		names = append(names, k.variable())
	}
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		is := func(other string) bool {
			return name == other || strings.HasSuffix(other, "_") && strings.HasPrefix(name, other)
		}
		if is(Prefix) && !slices.ContainsFunc(append(names, FileVariable), is) &&
			!slices.ContainsFunc(others, is) {
			found = append(found, fmt.Sprintf("%s configures nothing; the nearest is %s",
				name, nearest(name, names)))
		}
	}
	return found
}

// Changed compares a command that runs with a fresh one that has loaded the same again. It sets the
// keys that reload, and returns the others that differ.
func Changed(running, fresh *cobra.Command) (stale []string, err error) {
	now := map[string]Key{}
	for _, k := range Keys(fresh) {
		now[k.String()] = k
	}
	for _, k := range Keys(running) {
		newer := now[k.String()]
		switch {
		case newer.flag.Value.String() == k.flag.Value.String():
		case k.takesEffect() != BySIGHUP:
			stale = append(stale, k.String())
		default:
			values := []string{newer.flag.Value.String()}
			if list, is := newer.list(); is {
				values = list.GetSlice()
			}
			if err := k.set(values, newer.from()); err != nil {
				return nil, err
			}
		}
	}
	return stale, nil
}
