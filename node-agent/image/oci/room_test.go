package oci

import (
	"os"
	"path/filepath"
	"testing"
)

// What a process took that was killed is there for another attempt.
func TestARoomIsGivenBack(t *testing.T) {
	room, err := NewRoom(10)
	if err != nil {
		t.Fatal(err)
	}
	defer room.Close()
	for _, name := range []string{"killed", "whole", "late"} {
		blob, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		defer blob.Close()
		shared, err := room.share()
		if err != nil {
			t.Fatal(err)
		}
		defer shared.Close()
		err = (&Room{file: shared, most: room.most, mine: blob}).Take(8)
		if (err != nil) != (name == "late") {
			t.Errorf("%s: %v", name, err)
		}
		if name == "killed" {
			room.back(blob)
		}
	}
	if err := room.Take(2); err != nil {
		t.Errorf("what came too late has taken of it: %v", err)
	}
}

// What one host sends takes nothing from what another sends.
func TestEachHostHasARoom(t *testing.T) {
	rooms := NewRooms(10)
	for _, h := range []*host{nil, new(host)} {
		room, err := rooms.roomFor(h)
		if err != nil {
			t.Fatal(err)
		}
		if err := room.Take(8); err != nil {
			t.Error(err)
		}
		if room, err = rooms.roomFor(h); err != nil || room.Take(8) == nil {
			t.Errorf("a host has a second room (%v)", err)
		}
	}
	rooms.Close()
	if _, err := rooms.roomFor(nil); err == nil {
		t.Error("a pull that has ended gives room")
	}
}

// Who was handed the room keeps no memory in it: that would outlive its process.
func TestARoomHoldsNoBytes(t *testing.T) {
	room, err := NewRoom(10)
	if err != nil {
		t.Fatal(err)
	}
	defer room.Close()
	shared, err := room.share()
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	if _, err := shared.Write([]byte("x")); err == nil {
		t.Error("it takes what is written")
	}
	if err := shared.Truncate(1 << 20); err == nil {
		t.Error("it grows")
	}
	if err := room.Take(10); err != nil {
		t.Error(err)
	}
}
