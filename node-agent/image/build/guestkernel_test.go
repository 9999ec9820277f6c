package build

import (
	"slices"
	"strings"
	"testing"
)

// TestTheLeanGuestHasItsTopics: what a guest needs is in the configuration once, and of modules
// there are VF drivers alone.
func TestTheLeanGuestHasItsTopics(t *testing.T) {
	var options []string
	for line := range strings.Lines(string(leanConfig())) {
		option, value, set := strings.Cut(strings.TrimSpace(line), "=")
		if !set || strings.HasPrefix(line, "#") {
			continue
		}
		if slices.Contains(options, option) {
			t.Errorf("%s is there twice", option)
		}
		options = append(options, option)
		if value == "m" && option != "CONFIG_IGBVF" {
			t.Errorf("%s is a module, which nothing loads in time", option)
		}
	}
	for _, option := range []string{"CONFIG_PVH", "CONFIG_VIRTIO_BLK", "CONFIG_VIRTIO_VSOCKETS",
		"CONFIG_EROFS_FS", "CONFIG_OVERLAY_FS", "CONFIG_IGBVF", "CONFIG_IPV6", "CONFIG_CGROUP_BPF",
		"CONFIG_SECCOMP_FILTER", "CONFIG_TUN", "CONFIG_IPV6_MULTIPLE_TABLES",
		"CONFIG_INIT_ON_ALLOC_DEFAULT_ON", "CONFIG_CPU_MITIGATIONS", "CONFIG_X86_PM_TIMER"} {
		if !slices.Contains(options, option) {
			t.Errorf("%s is missing", option)
		}
	}
}
