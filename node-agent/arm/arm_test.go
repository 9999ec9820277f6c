package arm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/fastiovd"
)

// every calls f with each combination of values, whether or not it makes sense.
func every(f func(Arm)) {
	combine := []Arm{None}
	for _, x := range axes {
		var next []Arm
		for _, a := range combine {
			for _, value := range x.values {
				x.set(&a, value)
				next = append(next, a)
			}
		}
		combine = next
	}
	for _, a := range combine {
		f(a)
	}
}

func TestAnArmReadsWhatItPrints(t *testing.T) {
	sensible := 0
	every(func(a Arm) {
		got, err := Parse(a.String())
		if refused := a.check() != nil; (err != nil) != refused || !refused && got != a {
			t.Errorf("%+v prints as %s and reads as %+v, %v", a, a, got, err)
		}
		if err == nil {
			sensible++
		}
	})
	if want := 3 * 3 * 2 * 2 * 6; sensible != want { // l, s, a, r, and d with its barriers
		t.Errorf("%d combinations make sense, not %d", sensible, want)
	}
	for _, n := range named {
		if got, err := Parse(n.name); err != nil || got != n.arm || got.String() != n.name {
			t.Errorf("%s reads as %s, %v", n.name, got, err)
		}
	}
}

func TestAxesFollowAName(t *testing.T) {
	for text, want := range map[string]string{
		"all,r=0":              "a=1,d=pagecache",
		"all,a=0,d=eager,r=0":  "none",
		"all,d=eager,r=0":      "a=1",
		"none,l=bus":           "paper-2024",
		"l=bus,r=1":            "l=bus,r=1",
		"paper,a=0":            "l=hierarchical,d=table,barrier=none",
		"pre50,l=bus":          "pre50,l=bus",
		"d=table,barrier=none": "d=table,barrier=none",
	} {
		if a, err := Parse(text); err != nil || a.String() != want {
			t.Errorf("%s reads as %s, %v; want %s", text, a, err, want)
		}
	}
}

// Each refusal says why, and what to do instead.
func TestARefusalSaysWhy(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "use none, paper",
		"papers":                  "use none, paper",
		"x=1":                     "use none, paper",
		"l=":                      "l is bus, per-vf, hierarchical",
		"l=bus;r=1":               "l is bus, per-vf, hierarchical",
		"s=off":                   "s is 0, 1, dma-off",
		"r=2":                     "r is 0, 1",
		"r=1,":                    "spaces are between arms",
		"none,all":                "spaces are between arms",
		"r=1,r=0":                 "r twice",
		"d=table":                 "barrier=none",
		"d=table,barrier=coop":    "barrier=none",
		"barrier=coop":            "d=pagecache",
		"d=touchmap,barrier=coop": "d=pagecache",
		"barrier=none":            "d=pagecache and d=table",
		"nonet,l=bus":             "nonet has no VF",
		"tap,r=1":                 "tap has no VF",
		"netdev,l=bus":            "netdev has no VF",
		"pre50,d=pagecache":       "use d=eager",
	} {
		if a, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q reads as %v, %v; want %q", text, a, err, want)
		}
	}
}

func TestAListHasEachArmOnce(t *testing.T) {
	arms, err := ParseList(" none all  all,r=0 ")
	if err != nil || len(arms) != 3 || arms[0] != None || arms[1] != All {
		t.Errorf("%v, %v", arms, err)
	}
	for text, want := range map[string]string{
		"": "no arms", "none l=per-vf": "twice", "none,all": "spaces are between arms",
	} {
		if arms, err := ParseList(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q reads as %v, %v", text, arms, err)
		}
	}
}

// Whatever the text, it is refused or reads as an arm that makes sense and that prints as a text
// that reads as the same arm.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"none", "all,r=0", "l=bus,s=1,a=0,d=table,barrier=none", "pre50,",
		"nonet,=", "d=,d=", "\x00=1", ",,", "paper,barrier=strict"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Parse(text)
		if err != nil {
			if a != (Arm{}) || err.Error() == "" {
				t.Errorf("%q is refused with %+v and %q", text, a, err)
			}
			return
		}
		if why := a.check(); why != nil {
			t.Errorf("%q reads as %s: %v", text, a, why)
		}
		if again, err := Parse(a.String()); err != nil || again != a {
			t.Errorf("%q reads as %s, which reads as %s, %v", text, a, again, err)
		}
	})
}

func TestApplySwitchesTheKernel(t *testing.T) {
	root := t.TempDir()
	async := None
	async.Async = true
	region := None
	region.Root = Region
	for _, a := range []Arm{None, NoNet, async, region} {
		if err := a.apply(root); err != nil {
			t.Errorf("a stock kernel cannot be left as it is for %s: %v", a, err)
		}
	}
	for _, a := range []Arm{All, Paper2024, {Lock: PerVF, Memory: fastiovd.TouchMap,
		Barrier: Strict}} {
		if err := a.apply(root); err == nil || !strings.Contains(err.Error(), "fastiov's kernel") {
			t.Errorf("a stock kernel was switched to %s: %v", a, err)
		}
	}
	parameters := map[string]string{"vfio_pci_core/parameters/shared_vf_devset": "Y",
		"vfio/parameters/exclusive_devset":     "N",
		"vfio_pci_core/parameters/elide_reset": "Y", "vfio_pci_core/parameters/hold_master": "Y",
		fastiovd.TableSwitch: "N"}
	for name := range parameters {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for barrier, hold := range map[Barrier]string{Strict: "Y", Coop: "N", NoBarrier: "N"} {
		if err := (Arm{Lock: Hierarchical, Memory: fastiovd.PageCache, Reset: true,
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
	if err := os.Remove(filepath.Join(root, fastiovd.TableSwitch)); err != nil {
		t.Fatal(err)
	}
	if err := All.apply(root); err == nil || !strings.Contains(err.Error(), "load the module") {
		t.Errorf("without the module the kernel was switched to %s: %v", All, err)
	}
	if err := None.apply(root); err != nil {
		t.Errorf("without the module the kernel cannot be left as it is: %v", err)
	}
}
