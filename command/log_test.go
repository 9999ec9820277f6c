package command

import (
	"os"
	"strings"
	"testing"
)

func TestALogThatThereIsNot(t *testing.T) {
	for flag, said := range map[string]logFlags{
		"--log-level": {"loud", "text"}, "--log-format": {"info", "xml"},
	} {
		if _, err := said.open(os.Stderr); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
