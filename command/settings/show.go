package settings

import (
	"fmt"
	"io"
	"strings"

	"gopkg.in/yaml.v3"
)

// Show writes the keys as a file with what is in force, each with where it comes from. It masks
// passwords.
func Show(w io.Writer, keys []Key) {
	eachSection(keys, func(s Section, keys []Key) {
		fmt.Fprintf(w, "%s:\n", s.Name)
		for _, k := range keys {
			line := "  " + k.name() + ": " + Masked(k.yaml())
			fmt.Fprintf(w, "%-50s # %s\n", line, k.from())
		}
	})
}

// Default returns a file that has every key with its default and what it is.
func Default(keys []Key) string {
	var b strings.Builder
	b.WriteString(paragraph("# ", "The configuration of fastiov, "+DefaultFile+
		": every key with its default. A variable of the environment goes before this file, a flag"+
		" before both; `fastiov config` shows what is in force. A change needs a restart where"+
		" nothing else is said."))
	eachSection(keys, func(s Section, keys []Key) {
		fmt.Fprintf(&b, "\n%s%s:\n", paragraph("# ", sentence(s.What)), s.Name)
		for _, k := range keys {
			text := sentence(k.flag.Usage)
			if how := k.takesEffect(); how != byRestart {
				text += " A change takes effect " + how + "."
			}
			fmt.Fprintf(&b, "%s  %s: %s\n", paragraph("  # ", text), k.name(), k.yaml())
		}
	})
	return b.String()
}

// eachSection visits the keys section by section, as Keys has them.
func eachSection(keys []Key, visit func(s Section, keys []Key)) {
	for begin := 0; begin < len(keys); {
		end := begin
		for end < len(keys) && keys[end].section() == keys[begin].section() {
			end++
		}
		said := keys[begin].flag.Annotations[section]
		visit(Section{said[0], said[1]}, keys[begin:end])
		begin = end
	}
}

// yaml returns the value as a file has it.
func (k Key) yaml() string {
	if list, is := k.list(); is {
		node := yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, value := range list.GetSlice() {
			node.Content = append(node.Content, scalar(value))
		}
		return text(&node)
	}
	value := k.flag.Value.String()
	switch k.flag.Value.Type() {
	case "int", "bool":
		return value
	case "duration":
		return short(value)
	}
	return text(scalar(value))
}

// scalar returns a string that is quoted where YAML would take it for something else.
func scalar(value string) *yaml.Node {
	var node yaml.Node
	node.SetString(value)
	return &node
}

func text(node *yaml.Node) string {
	out, err := yaml.Marshal(node)
	if err != nil {
		return err.Error() // it is made of strings
	}
	return strings.TrimSpace(string(out))
}

// short returns a duration without the units that are 0.
func short(duration string) string {
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(duration, zero) {
			duration = duration[:len(duration)-2]
		}
	}
	return duration
}

// sentence begins with a capital and ends with a stop.
func sentence(words string) string {
	return strings.TrimSuffix(strings.ToUpper(words[:1])+words[1:], ".") + "."
}

// paragraph breaks text into lines of at most 100 columns, each with a prefix.
func paragraph(prefix, text string) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		width := len([]rune(word))
		switch {
		case column == 0:
			b.WriteString(prefix)
			column = len(prefix)
		case column+1+width > 100:
			b.WriteString("\n" + prefix)
			column = len(prefix)
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += width
	}
	return b.String() + "\n"
}
