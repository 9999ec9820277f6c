package jail

import (
	"fmt"
	"os"
	"strings"
)

// Leftovers lists cgroups, and processes in them, that belong to no sandbox in live.
func (h *Host) Leftovers(live map[string]bool) []string {
	var left []string
	for _, id := range h.root.Names() {
		if live[id] {
			continue
		}
		left = append(left, "cgroup fastiov/"+id)
		for _, pid := range h.root.Group(id).PIDs() {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			left = append(left, fmt.Sprintf("process %d (%s) of sandbox %s",
				pid, strings.TrimSpace(string(name)), id))
		}
	}
	return left
}
