package settings

import (
	"fmt"
	"strings"
)

// Reference returns the keys as a table for each section, in Markdown.
func Reference(keys []Key) string {
	var b strings.Builder
	cell := strings.NewReplacer("|", `\|`, "\n", " ")
	eachSection(keys, func(s Section, keys []Key) {
		fmt.Fprintf(&b, "## `%s:`\n\n%s\n", s.Name, sentence(s.What))
		b.WriteString("\n| key | flag, of | default | what it is | a change takes effect |\n")
		b.WriteString("|---|---|---|---|---|\n")
		for _, k := range keys {
			fmt.Fprintf(&b, "| `%s` | `--%s`, %s | `%s` | %s | %s |\n",
				k.name(), k.flag.Name, strings.Join(k.commands, ", "), k.yaml(),
				cell.Replace(sentence(k.flag.Usage)), k.takesEffect())
		}
		b.WriteString("\n")
	})
	return b.String()
}
