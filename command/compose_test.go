package command

import (
	"os"
	"slices"
	"testing"

	"gopkg.in/yaml.v3"
)

// TestComposeSpeaksOurCommandLine: docker-compose.yml runs our own image with commands, flags and
// arguments that exist. (rules/ checks that Docker takes the file.)
func TestComposeSpeaksOurCommandLine(t *testing.T) {
	content, err := os.ReadFile("../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Build       map[string]any
			Command     []string
			Healthcheck struct{ Test []string }
		}
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for name, s := range file.Services {
		if s.Build == nil {
			continue
		}
		checked++
		lines := [][]string{s.Command}
		if test := s.Healthcheck.Test; len(test) > 1 && test[1] == "fastiov" {
			lines = append(lines, test[2:])
		}
		for _, line := range lines {
			cmd, rest, err := rootCmd().Find(line)
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err == nil {
				err = cmd.ValidateArgs(cmd.Flags().Args())
			}
			if err != nil || slices.Equal(rest, line) {
				t.Errorf("service %s runs fastiov %q: %v", name, line, err)
			}
		}
	}
	if checked < 4 {
		t.Errorf("%d services run our image", checked)
	}
}
