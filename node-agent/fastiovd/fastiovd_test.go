package fastiovd

import (
	"testing"
	"unsafe"
)

// The numbers are those of the C header: direction, size, letter and number.
func TestIoctlNumbers(t *testing.T) {
	for _, c := range []struct{ got, direction, size, number uintptr }{
		{ioctlRegister, 1, unsafe.Sizeof(register{}), 0},
		{ioctlStat, 3, unsafe.Sizeof(Stat{}), 1},
		{ioctlInstant, 1, unsafe.Sizeof(Range{}), 3},
	} {
		if want := c.direction<<30 | c.size<<16 | 0xf1<<8 | c.number; c.got != want {
			t.Errorf("%#x, not %#x", c.got, want)
		}
	}
}
