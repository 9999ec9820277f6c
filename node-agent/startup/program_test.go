package startup

import (
	"fmt"
	"testing"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// A request replaces the image's command and arguments as a container of Kubernetes does.
func TestARequestReplacesTheImagesProgram(t *testing.T) {
	image := wire.Program{
		Command: []string{"/run", "-v"}, Args: 1, Dir: "/app", UID: 5, GID: 6, Protocol: "http",
	}
	for want, r := range map[string]Request{
		"[/run -v] /app 5:6":    {},
		"[/other] / 7:0":        {Command: []string{"/other"}, Dir: "/", User: "7"},
		"[/run -q -x] /app 0:0": {Args: []string{"-q", "-x"}, User: "0:0"},
		"[/other -x] /app 7:8":  {Command: []string{"/other"}, Args: []string{"-x"}, User: "7:8"},
	} {
		var p wire.Program
		err := r.program(image, &p)
		got := fmt.Sprint(p.Command, " ", p.Dir, " ", p.UID, ":", p.GID)
		if err != nil || got != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	for _, user := range []string{"root", "-1", "1:", "4294967296"} {
		if err := (&Request{User: user}).program(image, &wire.Program{}); err == nil {
			t.Errorf("user %q", user)
		}
	}
	if fmt.Sprint(image.Command) != "[/run -v]" {
		t.Errorf("the image's command became %v", image.Command)
	}
}
