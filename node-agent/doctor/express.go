package doctor

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/fastiov/fastiov/node-agent/netpath/scon"
)

// express lists the bridges whose packets may go past the rules, and what was changed for that.
func express(records string) Finding {
	const check = "express path"
	var all, alone []string
	for _, bridge := range scon.Attached(records) {
		v, err := scon.Open(records, bridge)
		if err != nil {
			return no(check, "remove that file", "%v", err)
		}
		if !v.Followed() {
			alone = append(alone, bridge)
		}
		all = append(all, bridge+changed(v.Settings))
	}
	switch {
	case len(all) == 0:
		return ok(check, "no bridge has one; %s", settings())
	case len(alone) > 0:
		return note(check, "run `fastiov scon attach` or `detach` on "+strings.Join(alone, " and "),
			"of %s; no process follows %s", strings.Join(all, ", "), strings.Join(alone, " and "))
	}
	return ok(check, "of %s; %s", strings.Join(all, ", "), settings())
}

// changed says what a bridge's express path has changed, and what that was.
func changed(was map[string]string) string {
	var all []string
	for _, file := range scon.Settings {
		if value, is := was[file]; is {
			all = append(all, fmt.Sprintf("%s was %s", filepath.Base(file), value))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}

// settings says how conntrack is set.
func settings() string {
	if scon.ToleratesGaps() {
		return "conntrack tolerates gaps in TCP"
	}
	return "conntrack tracks windows of TCP"
}
