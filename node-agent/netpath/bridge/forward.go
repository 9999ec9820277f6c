package bridge

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	forwardIP = "/proc/sys/net/ipv4/ip_forward"
	perDevice = "/proc/sys/net/ipv4/conf/*/forwarding"
	redirects = "/proc/sys/net/ipv4/conf/all/accept_redirects"
)

// followForwarding returns the settings that follow ip_forward, as they are: the kernel sets each
// of them when that changes, whatever it was.
func followForwarding() map[string]string {
	settings := map[string]string{}
	files, _ := filepath.Glob(perDevice) // the pattern is good
	for _, file := range append(files, redirects) {
		if value, err := os.ReadFile(file); err == nil {
			settings[file] = strings.TrimSpace(string(value))
		}
	}
	return settings
}

// stopForwarding has the host forward no more, and the settings be as they were. A device may have
// gone meanwhile.
func stopForwarding(settings map[string]string) error {
	err := os.WriteFile(forwardIP, []byte("0"), 0)
	for _, file := range slices.Sorted(maps.Keys(settings)) {
		is, missing := os.ReadFile(file)
		if missing == nil && strings.TrimSpace(string(is)) != settings[file] {
			err = errors.Join(err, os.WriteFile(file, []byte(settings[file]), 0))
		}
	}
	return err
}
