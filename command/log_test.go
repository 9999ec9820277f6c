package command

import (
	"strings"
	"testing"
)

func TestALogThatThereIsNot(t *testing.T) {
	for _, flag := range []string{"--log-level=loud", "--log-format=xml"} {
		name, _, _ := strings.Cut(flag, "=")
		err := agentCmd().ParseFlags([]string{flag})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
