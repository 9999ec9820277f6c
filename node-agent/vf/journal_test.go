package vf

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const (
	someBDF  = "0000:01:10.0"
	leasedBy = `{"version":2,"bdf":"0000:01:10.0","state":"leased","generation":1,"owner":OWNER}`
)

func TestJournalRemembers(t *testing.T) {
	j := journal(t.TempDir())
	want := map[string]entry{
		someBDF: {
			Version: 1, BDF: someBDF, State: Leased, Generation: 7,
			Owner: &Owner{Kind: Sandbox, Name: "a", PID: 12, StartTicks: 34},
		},
		"0000:01:10.1": {Version: 1, BDF: "0000:01:10.1", State: Idle, Generation: 3},
	}
	for _, e := range want {
		if err := j.write(e); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"lock", someBDF + ".json" + tempSuffix, "notes.json"} {
		if err := os.WriteFile(filepath.Join(string(j), name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := j.read(func(bdf string, err error) { t.Errorf("%s: %v", bdf, err) })
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %v, %v; want %v", got, err, want)
	}
	if _, err := os.Stat(j.path(someBDF) + tempSuffix); err == nil {
		t.Error("what a crash left of a write is still there")
	}
}

// An entry that cannot be understood in full is a lease by an unknown owner: nothing touches the VF
// on a guess.
func TestJournalRefusesToGuess(t *testing.T) {
	for name, text := range map[string]string{
		"empty":            ``,
		"cut":              `{"version":1,"bdf":"0000:01:10.0","sta`,
		"later version":    `{"version":4,"bdf":"0000:01:10.0","state":"idle","generation":1}`,
		"of later fields":  `{"version":4,"bdf":["0000:01:10.0"],"state":{"lent":true}}`,
		"no version":       `{"bdf":"0000:01:10.0","state":"idle","generation":1}`,
		"other VF":         `{"version":1,"bdf":"0000:01:10.1","state":"idle","generation":1}`,
		"unknown state":    `{"version":1,"bdf":"0000:01:10.0","state":"lent","generation":1}`,
		"leased by none":   `{"version":1,"bdf":"0000:01:10.0","state":"leased","generation":1}`,
		"leased by ''":     `{"version":1,"bdf":"0000:01:10.0","state":"leased","generation":1,"owner":{"sandbox":""}}`,
		"idle, but leased": `{"version":1,"bdf":"0000:01:10.0","state":"idle","generation":1,"owner":{"sandbox":"a"}}`,
		"of no kind":       strings.Replace(leasedBy, "OWNER", `{"sandbox":"a"}`, 1),
		"unknown kind":     strings.Replace(leasedBy, "OWNER", `{"kind":"host","sandbox":"a"}`, 1),
		"unknown driver":   `{"version":2,"bdf":"0000:01:10.0","state":"idle","driver":"dpdk"}`,
		"two values":       `{"version":1,"bdf":"0000:01:10.0","state":"idle","generation":1} {}`,
		"negative":         `{"version":1,"bdf":"0000:01:10.0","state":"idle","generation":-1}`,
	} {
		t.Run(name, func(t *testing.T) {
			j := journal(t.TempDir())
			if err := os.WriteFile(j.path(someBDF), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			warned := false
			got, err := j.read(func(string, error) { warned = true })
			if e := got[someBDF]; err != nil || !warned || e.State != Leased || e.Owner != nil {
				t.Errorf("read %+v, %v; warned: %t", e, err, warned)
			}
		})
	}
}

// An agent understands what a former or a later one of its version wrote; of one of a later version
// it says why not. The former's is as it was written before unknown fields were borne.
func TestJournalsOfOtherAgents(t *testing.T) {
	want := entry{
		Version: 1, BDF: someBDF, State: Leased, Generation: 7,
		Owner: &Owner{Kind: Sandbox, Name: "a", PID: 188, StartTicks: 5808},
	}
	for file, refused := range map[string]string{
		"former.json":        "",
		"later-fields.json":  "",
		"later-version.json": "of a later version of fastiov: it is 4, this one knows 3",
	} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		j := journal(t.TempDir())
		if err := os.WriteFile(j.path(someBDF), text, 0o600); err != nil {
			t.Fatal(err)
		}
		warned := ""
		got, err := j.read(func(_ string, err error) { warned = err.Error() })
		if err != nil || (warned == "") != (refused == "") || !strings.Contains(warned, refused) {
			t.Errorf("%s: %v, says %q, want %q", file, err, warned, refused)
		}
		e := got[someBDF]
		if refused == "" && !reflect.DeepEqual(e, want) {
			t.Errorf("%s: read %+v, want %+v", file, e, want)
		}
		if refused != "" && (e.State != Leased || e.Owner != nil || e.refused != warned) {
			t.Errorf("%s: read %+v, want a lease by an unknown owner", file, e)
		}
	}
}

// An entry that a former agent can act upon is written as it wrote it; that agent refuses the rest
// by its version.
func TestWhatAFormerAgentReads(t *testing.T) {
	pod := &Owner{Kind: Pod, Name: "default/web", Netns: "/run/netns/web"}
	sandbox := &Owner{Kind: Sandbox, Name: "a", PID: 188, StartTicks: 5808}
	for _, c := range []struct {
		e    entry
		want string // its beginning
	}{
		{entry{State: Idle, Generation: 3, Driver: VFIO},
			`{"version":1,"bdf":"0000:01:10.0","state":"idle","generation":3}`},
		{entry{State: Leased, Owner: sandbox, Driver: VFIO},
			`{"version":1,"bdf":"0000:01:10.0","state":"leased","generation":0,` +
				`"owner":{"sandbox":"a","pid":188,"start_ticks":5808}}`},
		{entry{State: Leased, Owner: pod, Driver: VFIO}, `{"version":2,`},
		{entry{State: Leased, Owner: sandbox, Driver: Netdev}, `{"version":2,`},
		{entry{State: Preparing, Driver: Netdev}, `{"version":2,`},
	} {
		j := journal(t.TempDir())
		c.e.BDF = someBDF
		if err := j.write(c.e); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(j.path(someBDF))
		if err != nil || !strings.HasPrefix(string(text), c.want) {
			t.Errorf("%+v became %s (%v), want %s", c.e, text, err, c.want)
		}
		got, err := j.read(func(bdf string, err error) { t.Errorf("%s: %v", bdf, err) })
		e := got[someBDF]
		if err != nil || e.State != c.e.State || !reflect.DeepEqual(e.Owner, c.e.Owner) ||
			cmp.Or(e.Driver, VFIO) != c.e.Driver {
			t.Errorf("%s is read as %+v, %v", text, e, err)
		}
	}
}

func TestJournalFullDisk(t *testing.T) {
	j := journal(filepath.Join(t.TempDir(), "missing"))
	if err := j.write(entry{BDF: someBDF, State: Idle}); err == nil {
		t.Error("a write into nowhere worked")
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte(
		`{"version":1,"bdf":"0000:01:10.0","state":"leased","generation":1,"owner":{"sandbox":"a","pid":1,"start_ticks":2}}`))
	pod := `{"kind":"pod","sandbox":"p","netns":"/run/netns/p"},"driver":"netdev"`
	f.Add([]byte(strings.Replace(leasedBy, "OWNER", pod, 1)))
	f.Add([]byte(
		`{"version":1,"bdf":"0000:01:10.0","state":"idle","generation":18446744073709551615}`))
	f.Add([]byte(`{"version":1`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := decodeEntry(data, someBDF)
		if err != nil {
			return
		}
		owned := e.Owner != nil && e.Owner.Name != "" && e.Owner.Kind != ""
		if (e.State == Leased) != owned || e.BDF != someBDF {
			t.Fatalf("accepted %+v", e)
		}
		again, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := decodeEntry(again, someBDF); err != nil || !reflect.DeepEqual(e, twice) {
			t.Fatalf("%+v became %+v (%v)", e, twice, err)
		}
	})
}
