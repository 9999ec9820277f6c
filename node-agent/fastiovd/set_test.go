package fastiovd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"
)

func TestASetReadsWhatItPrints(t *testing.T) {
	for _, lock := range []Lock{Bus, PerVF, Hierarchical} {
		for _, memory := range Policies {
			for _, barrier := range []Barrier{Strict, Coop, NoBarrier} {
				for _, reset := range []bool{false, true} {
					s := Set{Lock: lock, Memory: memory, Reset: reset, Barrier: barrier}
					got, err := Parse(s.String())
					refused := memory == Table && barrier != NoBarrier ||
						memory != PageCache && barrier == Coop
					if (err != nil) != refused || !refused && got != s {
						t.Errorf("%+v prints as %s and reads as %+v, %v", s, s, got, err)
					}
				}
			}
		}
	}
}

func TestASetThatIsNoneSaysWhatThereIs(t *testing.T) {
	for _, text := range []string{"", "paper", "l=", "l=bus;r=1", "d=tables", "r=1,"} {
		if s, err := Parse(text); err == nil || !strings.Contains(err.Error(), "use none, all") {
			t.Errorf("%q reads as %v, %v", text, s, err)
		}
	}
}

func TestARefusedSetSaysWhatToDo(t *testing.T) {
	for text, want := range map[string]string{
		"d=table": "barrier=none", "d=table,barrier=coop": "barrier=none",
		"barrier=coop": "d=pagecache",
	} {
		if s, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s reads as %v, %v", text, s, err)
		}
	}
}

func TestApplySwitchesTheKernel(t *testing.T) {
	root := t.TempDir()
	if err := None.apply(root); err != nil {
		t.Errorf("a stock kernel cannot be left as it is: %v", err)
	}
	if err := All.apply(root); err == nil || !strings.Contains(err.Error(), "fastiov's kernel") {
		t.Errorf("a stock kernel was switched: %v", err)
	}
	parameters := map[string]string{"vfio_pci_core/parameters/shared_vf_devset": "Y",
		"vfio/parameters/exclusive_devset":     "N",
		"vfio_pci_core/parameters/elide_reset": "Y", "vfio_pci_core/parameters/hold_master": "Y",
		"fastiovd/parameters/allow_table": "N"}
	for name := range parameters {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for barrier, hold := range map[Barrier]string{Strict: "Y", Coop: "N", NoBarrier: "N"} {
		if err := (Set{Lock: Hierarchical, Memory: PageCache, Reset: true,
			Barrier: barrier}).apply(root); err != nil {
			t.Fatal(err)
		}
		parameters["vfio_pci_core/parameters/hold_master"] = hold
		for name, want := range parameters {
			if got, err := os.ReadFile(filepath.Join(root, name)); string(got) != want {
				t.Errorf("with barrier=%s %s is %q, not %s (%v)", barrier, name, got, want, err)
			}
		}
	}
}

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
