// Package settings gives the flags of a command two more places to come from: a file and the
// environment. The flags are the table: a flag that Add registers is a key of a section as well.
//
//	flag          key in the file          variable
//	--subnet      node: subnet:            FASTIOV_NODE_SUBNET
//	--log-level   log: level:              FASTIOV_LOG_LEVEL
//
// A flag goes before a variable, that before the file, and that before the default. The package
// knows no key by name: what is checked (load.go), shown (show.go) and documented (reference.go)
// follows from the flags.
package settings

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A Section is a part of the file.
type Section struct{ Name, What string }

// Prefix begins the name of every variable.
const Prefix = "FASTIOV_"

// What a flag is annotated with.
const (
	section = "section" // its name, and what it is
	origin  = "origin"  // where the value comes from; absent: the default
	effect  = "effect"  // how a change takes effect
)

// BySIGHUP marks the keys that Changed sets.
const BySIGHUP = "by SIGHUP"

const byRestart = "by a restart"

// Add gives a command the flags that register makes, as the keys of a section, and --config.
func Add(cmd *cobra.Command, s Section, register func(*pflag.FlagSet)) {
	own := pflag.NewFlagSet(s.Name, pflag.ContinueOnError)
	own.SortFlags = false
	register(own)
	own.VisitAll(func(f *pflag.Flag) {
		annotate(f, section, s.Name, s.What)
		if words := wanted[f.Value.Type()]; words != "" {
			f.Value = worded{f.Value, words, f.DefValue}
		}
		cmd.Flags().AddFlag(f)
	})
	cmd.Flags().SortFlags = false // the file has them in this order, too
	if cmd.Flags().Lookup(configFlag) == nil {
		cmd.Flags().String(configFlag, "", "the configuration file"+
			" (default: $"+FileVariable+", else "+DefaultFile+" if it is there)")
	}
}

// TakesEffect notes how a change of these flags does, where that is not by a restart.
func TakesEffect(flags *pflag.FlagSet, how string, names ...string) {
	for _, name := range names {
		annotate(flags.Lookup(name), effect, how)
	}
}

func annotate(f *pflag.Flag, key string, values ...string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = values
}

// wanted says what a value of a type is.
var wanted = map[string]string{
	"int": "a whole number of 0 or more", "bool": "true or false",
	"duration": "a duration of 0 or more, as 90s or 10m",
}

// A worded value says what it wants. Nothing but a default is negative.
type worded struct {
	pflag.Value
	wanted, otherwise string
}

func (w worded) Set(text string) error {
	negative := strings.HasPrefix(text, "-") && text != w.otherwise
	if negative || w.Value.Set(text) != nil {
		return fmt.Errorf("%q is not %s", text, w.wanted)
	}
	return nil
}

// Check has check look at each value that a flag is given.
func Check(flags *pflag.FlagSet, check func(string) error, names ...string) {
	for _, name := range names {
		f := flags.Lookup(name)
		if list, is := f.Value.(pflag.SliceValue); is {
			f.Value = checkedList{f.Value, list, check}
		} else {
			f.Value = checked{f.Value, check}
		}
	}
}

type checkedList struct {
	pflag.Value
	pflag.SliceValue
	check func(string) error
}

func (c checkedList) Set(text string) error {
	if err := c.Value.Set(text); err != nil {
		return err
	}
	return c.all(c.GetSlice())
}

func (c checkedList) Replace(values []string) error {
	if err := c.all(values); err != nil {
		return err
	}
	return c.SliceValue.Replace(values)
}

func (c checkedList) all(values []string) error {
	for _, value := range values {
		if err := c.check(value); err != nil {
			return err
		}
	}
	return nil
}

type checked struct {
	pflag.Value
	check func(string) error
}

func (c checked) Set(text string) error {
	if err := c.check(text); err != nil {
		return err
	}
	return c.Value.Set(text)
}

// A Key is a flag as the file and the environment know it.
type Key struct {
	flag     *pflag.Flag
	commands []string // that have it
}

func (k Key) section() string { return k.flag.Annotations[section][0] }

// name returns what the key is called in its section.
func (k Key) name() string { return strings.TrimPrefix(k.flag.Name, k.section()+"-") }

func (k Key) String() string { return k.section() + "." + k.name() }

func (k Key) variable() string {
	return Prefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(k.String()))
}

// from returns where the value comes from.
func (k Key) from() string {
	switch where := k.flag.Annotations[origin]; {
	case where != nil:
		return where[0]
	case k.flag.Changed:
		return "--" + k.flag.Name
	}
	return "default"
}

func (k Key) list() (pflag.SliceValue, bool) {
	list, is := k.flag.Value.(pflag.SliceValue)
	return list, is
}

// takesEffect returns how a change does.
func (k Key) takesEffect() string {
	if how := k.flag.Annotations[effect]; how != nil {
		return how[0]
	}
	return byRestart
}

// set gives the flag a value, which is a list of values where the flag is one. One that is set to
// its default counts as not given.
func (k Key) set(values []string, from string) (err error) {
	if list, is := k.list(); is {
		err = list.Replace(values)
	} else {
		err = k.flag.Value.Set(values[0])
	}
	if err != nil {
		return err
	}
	k.flag.Changed = k.flag.Value.String() != k.flag.DefValue
	annotate(k.flag, origin, from)
	return nil
}

// Keys returns the keys of a command, or of several, each once; those of a section stand together.
func Keys(cmds ...*cobra.Command) (all []Key) {
	known := map[string]int{}
	var sections []string
	for _, cmd := range cmds {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Annotations[section] == nil {
				return
			}
			k := Key{flag: f}
			at, there := known[k.String()]
			if !there {
				at = len(all)
				known[k.String()], all = at, append(all, k)
			}
			all[at].commands = append(all[at].commands, cmd.Name())
			if !slices.Contains(sections, k.section()) {
				sections = append(sections, k.section())
			}
		})
	}
	slices.SortStableFunc(all, func(a, b Key) int {
		return slices.Index(sections, a.section()) - slices.Index(sections, b.section())
	})
	return all
}

var password = regexp.MustCompile(`(://[^:/\s]*):.*@`)

// Masked returns text without the passwords of the URLs in it. A password may have any letter, so
// what is between two URLs of a line is masked, too.
func Masked(text string) string { return password.ReplaceAllString(text, "$1:xxxxx@") }
