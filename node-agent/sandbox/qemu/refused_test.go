package qemu

import (
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// What is more than a microVM is handed is refused before there is anything of the microVM.
func TestAProgramThatIsGivenTooMuch(t *testing.T) {
	spec := sandbox.Spec{ID: "a", MemoryMiB: 1024, Program: wire.Program{
		Env: map[string]string{"A": strings.Repeat("x", wire.MaxLine)}}}
	_, err := new(Driver).Start(t.Context(), spec, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "more than a microVM is handed") {
		t.Errorf("it is answered %v", err)
	}
}
