package jail

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Leftovers lists what belongs to no sandbox in live: cgroups, processes in them, and VFIO nodes that a sandbox's user still owns.
func (h *Host) Leftovers(live map[string]bool) []string {
	var left []string
	users := map[int]bool{}
	for _, id := range h.root.Names() {
		pids := h.root.Group(id).PIDs()
		if live[id] {
			for _, pid := range pids {
				users[userOf(pid)] = true
			}
			continue
		}
		left = append(left, "cgroup fastiov/"+id)
		for _, pid := range pids {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			left = append(left, fmt.Sprintf("process %d (%s) of sandbox %s", pid, strings.TrimSpace(string(name)), id))
		}
	}
	nodes, _ := filepath.Glob("/dev/vfio/[0-9]*")
	for _, node := range nodes {
		if user := ownerOf(node); isUser(user) && !users[user] {
			left = append(left, fmt.Sprintf("%s is still owned by user %d", node, user))
		}
	}
	return left
}

func ownerOf(path string) int {
	var stat unix.Stat_t
	if unix.Stat(path, &stat) != nil {
		return -1
	}
	return int(stat.Uid)
}
