package containerd

import (
	"bytes"
	"fmt"
	"os"

	defaults "github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/containerd/containerd/v2/pkg/apparmor"
)

const (
	appArmorOn     = "/sys/module/apparmor/parameters/enabled"
	appArmorRemove = "/sys/kernel/security/apparmor/.remove"
)

// profileName names the profile of AppArmor that a driver's containers have.
func profileName(namespace string) string { return namespace + "-containers" }

// loadProfile has the host's AppArmor know containerd's default profile, under a name of the
// driver's own. It returns "" where the host has no AppArmor.
func (d *Driver) loadProfile() (name string, err error) {
	if !apparmor.HostSupports() {
		if on, _ := os.ReadFile(appArmorOn); bytes.HasPrefix(on, []byte("Y")) {
			d.Log.Warn("containers have no profile of AppArmor, which this host has: it has no" +
				" apparmor_parser, or no securityfs; install apparmor")
		}
		return "", nil
	}
	name = profileName(d.Namespace)
	return name, load(name)
}

// load loads a profile unless it is there. Whoever tidies a host's profiles may have removed it.
func load(profile string) error {
	if err := defaults.LoadDefaultProfile(profile); err != nil {
		return fmt.Errorf("the profile of AppArmor for containers: %w", err)
	}
	return nil
}

// unloadProfile takes the profile back, if it is there. No container may be left.
func unloadProfile(namespace string) {
	_ = os.WriteFile(appArmorRemove, []byte(profileName(namespace)), 0)
}
