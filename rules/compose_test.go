package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"gopkg.in/yaml.v3"
)

// compose returns docker-compose.yml with all its profiles, as `docker compose config` reads it:
// with Compose's own loader and schema.
func compose(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")},
		cli.WithProfiles([]string{"*"}), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatalf("docker compose config would fail: %v", err)
	}
	return project
}

// containerVersions returns the versions of the images in versions.yaml, by the name of the image.
func containerVersions(t *testing.T) map[string]string {
	t.Helper()
	var versions struct{ Containers map[string]string }
	if err := yaml.Unmarshal([]byte(read(t, "versions.yaml")), &versions); err != nil {
		t.Fatal(err)
	}
	return versions.Containers
}

func TestContainersAreOfThePinnedVersions(t *testing.T) {
	pinned, used := containerVersions(t), map[string]bool{}
	check := func(where, image string) {
		name, tag, _ := strings.Cut(image, ":")
		used[name] = true
		if tag == "" || tag == "latest" || pinned[name] != tag {
			t.Errorf("%s: image %s, and versions.yaml has %s:%s", where, image, name, pinned[name])
		}
	}
	for name, s := range compose(t).Services {
		switch {
		case s.Build == nil:
			check(name, s.Image)
		case s.Build.Target == "" || !strings.Contains(read(t, s.Build.Dockerfile),
			" AS "+s.Build.Target+"\n"):
			t.Errorf("%s: %s has no stage %q", name, s.Build.Dockerfile, s.Build.Target)
		}
	}
	for _, from := range regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(read(t,
		"Dockerfile"), -1) {
		check("Dockerfile", from[1])
	}
	for name := range pinned {
		if !used[name] {
			t.Errorf("versions.yaml pins the container %s, which nothing uses", name)
		}
	}
	wanted := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(read(t, "go.mod"))[1]
	if got, _, _ := strings.Cut(pinned["golang"], "-"); got != wanted {
		t.Errorf("the container golang is %s, and go.mod wants %s", got, wanted)
	}
}

func TestComposeIsForThisMachineOnly(t *testing.T) {
	project := compose(t)
	secret := regexp.MustCompile(`(?i)password|secret|token`)
	for name, s := range project.Services {
		once := slices.Contains(s.Profiles, "load") // ends by itself
		if !once && (s.HealthCheck == nil || len(s.HealthCheck.Test) < 2) {
			t.Errorf("%s has no healthcheck", name)
		}
		if s.Privileged || s.NetworkMode == "host" || len(s.CapAdd) > 0 {
			t.Errorf("%s may do what it need not", name)
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is on %q; loopback is the default",
					name, port.Published, port.HostIP)
			}
		}
		for key, value := range s.Environment {
			if secret.MatchString(key) && value != nil && *value != "" {
				t.Errorf("%s: %s has a value that everybody knows", name, key)
			}
		}
		for other, need := range s.DependsOn {
			if need.Condition != types.ServiceConditionHealthy {
				t.Errorf("%s does not wait until %s is healthy", name, other)
			}
		}
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	grafana := project.Services["grafana"].Environment
	if *grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] != "true" {
		t.Error("Grafana has an administrator whose password everybody knows")
	}
}

// An invoker finds its promises under its name, which defaults to its host's name. A container that
// replaces another one has another host name.
func TestAnInvokerInAContainerHasAName(t *testing.T) {
	invokers := 0
	for name, s := range compose(t).Services {
		if len(s.Command) == 0 || s.Command[0] != "invoker" {
			continue
		}
		invokers++
		named := func(word string) bool {
			return strings.HasPrefix(word, "--name=") && word != "--name="
		}
		if !slices.ContainsFunc(s.Command, named) {
			t.Errorf("%s has no --name", name)
		}
	}
	if invokers == 0 {
		t.Error("there is no invoker")
	}
}

// Every address that Grafana and Prometheus are given exists under that name, at a port that is
// served.
func TestComposePointsAtItself(t *testing.T) {
	project := compose(t)
	for _, file := range []string{
		"dashboards/grafana/provisioning/datasources/fastiov.yml",
		"dashboards/prometheus/targets-compose.yml", "docker-compose.yml",
	} {
		for _, at := range regexp.MustCompile(
			`(?:https?://|redis://|")([a-z][a-z0-9-]*):(\d{4})\b`).FindAllStringSubmatch(read(t,
			file), -1) {
			s, there := project.Services[at[1]]
			if !there {
				t.Errorf("%s: there is no service %s", file, at[1])
				continue
			}
			known := map[string]string{
				"redis": "6379", "prometheus": "9090", "registry": "5000", "grafana": "3000",
			}
			if known[at[1]] != at[2] && !strings.Contains(strings.Join(s.Command, " "), ":"+at[2]) {
				t.Errorf("%s: %s does not serve port %s", file, at[1], at[2])
			}
		}
	}
}
