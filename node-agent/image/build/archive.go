package build

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
)

// An archive says where Debian's packages come from.
type archive struct {
	main     string // the releases and their updates
	security string
}

// debootstrapScript is the program of the package debootstrap, which names the archive that it
// takes without being told another.
var debootstrapScript = "/usr/sbin/debootstrap"

var errNoArchive = errors.New("apt knows no archive of Debian; run apt-get update, " +
	"add a source of Debian to apt, or install the package debootstrap, which names one")

// findArchive returns the archive that this machine's apt has Debian from. A machine that is not
// Debian's has none: there it is the one that debootstrap takes.
func findArchive(ctx context.Context) (archive, error) {
	const columns = "$(REPO_URI)\t$(ORIGIN)\t$(LABEL)"
	out, err := command(ctx, "apt-get", "indextargets", "--format", columns,
		"Created-By: Packages").Output()
	if ctx.Err() != nil {
		return archive{}, ctx.Err()
	}
	if a := aptsArchive(string(out)); err == nil && a.main != "" {
		return a, nil
	}
	script, err := os.ReadFile(debootstrapScript)
	if err != nil {
		return archive{}, errNoArchive
	}
	found := regexp.MustCompile(`(?m)^DEF_MIRROR="(\S+)"`).FindSubmatch(script)
	if found == nil {
		return archive{}, errNoArchive
	}
	return withSecurity(archive{main: string(found[1])}), nil
}

// aptsArchive reads the archive from a list of apt's index targets: URI, origin and label.
func aptsArchive(targets string) archive {
	var a archive
	for line := range strings.Lines(targets) {
		uri, release, _ := strings.Cut(strings.TrimSpace(line), "\t")
		uri = strings.TrimSuffix(uri, "/")
		switch {
		case strings.HasPrefix(uri, "cdrom:"):
		case a.main == "" && release == "Debian\tDebian":
			a.main = uri
		case a.security == "" && release == "Debian\tDebian-Security":
			a.security = uri
		}
	}
	if a.main == "" {
		return archive{}
	}
	return withSecurity(a)
}

// withSecurity completes an archive by the place where Debian's own has security updates.
func withSecurity(a archive) archive {
	if a.security == "" {
		a.security = a.main + "-security"
	}
	return a
}
