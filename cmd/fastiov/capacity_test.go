package main

import (
	"os"
	"testing"
)

// An agent that is started again has the capacity that the former one had, as long as sandboxes of
// that one are there.
func TestCapacityIsThatOfTheEmptyNode(t *testing.T) {
	f := &nodeFlags{runDir: t.TempDir(), sandbox: "qemu"}
	empty, err := f.capacity(false)
	if err != nil || empty <= 0 {
		t.Fatal(empty, err)
	}
	if err := f.noteCapacity(empty + 1000); err != nil {
		t.Fatal(err)
	}
	if now, err := f.capacity(true); now != empty+1000 || err != nil {
		t.Errorf("beside sandboxes: %d, %v; want %d", now, err, empty+1000)
	}
	noted := f.capacityFile()
	for _, text := range []string{"12345", "no number", ""} {
		if err := os.WriteFile(noted, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		now, err := f.capacity(true)
		if err != nil || (now == 12345) != (text == "12345") || now <= 0 {
			t.Errorf("beside sandboxes, with %q noted: %d, %v", text, now, err)
		}
	}
	if err := os.WriteFile(noted, []byte("12345"), 0o644); err != nil {
		t.Fatal(err)
	}
	if now, err := f.capacity(false); now == 12345 || err != nil {
		t.Errorf("an empty node: %d, %v", now, err)
	}
	f.memoryMiB = 77
	if now, err := f.capacity(true); now != 77 || err != nil {
		t.Errorf("as told: %d, %v", now, err)
	}
}
