package command

import (
	"os"
	"testing"
)

// An agent that is started again has the capacity that the empty node had, as long as sandboxes of
// that time are there. A figure measured beside sandboxes is not the empty node's.
func TestCapacityIsThatOfTheEmptyNode(t *testing.T) {
	f := &nodeFlags{runDir: t.TempDir(), sandbox: &drivers[0]}
	measured, empty, err := f.capacity(false)
	if err != nil || measured <= 0 || !empty {
		t.Fatal(measured, empty, err)
	}
	for _, text := range []string{"", "no number"} {
		if text != "" {
			if err := os.WriteFile(f.capacityFile(), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		now, empty, err := f.capacity(true)
		if err != nil || now <= 0 || empty {
			t.Errorf("beside sandboxes, with %q noted: %d, %v, %v", text, now, empty, err)
		}
	}
	if err := f.noteCapacity(12345); err != nil {
		t.Fatal(err)
	}
	if now, empty, err := f.capacity(true); now != 12345 || empty || err != nil {
		t.Errorf("beside sandboxes: %d, %v, %v", now, empty, err)
	}
	if now, empty, err := f.capacity(false); now == 12345 || !empty || err != nil {
		t.Errorf("an empty node: %d, %v, %v", now, empty, err)
	}
	f.memoryMiB = 77
	if now, empty, err := f.capacity(true); now != 77 || empty || err != nil {
		t.Errorf("as told: %d, %v, %v", now, empty, err)
	}
}
