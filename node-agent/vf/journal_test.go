package vf

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

const someBDF = "0000:01:10.0"

func TestJournalRemembers(t *testing.T) {
	j := journal(t.TempDir())
	want := map[string]entry{
		someBDF:        {Version: 1, BDF: someBDF, State: Leased, Generation: 7, Owner: &Owner{"a", 12, 34}},
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

// What cannot be understood in full is a lease by an unknown owner: nothing touches the VF on a guess.
func TestJournalRefusesToGuess(t *testing.T) {
	for name, text := range map[string]string{
		"empty":            ``,
		"cut":              `{"version":1,"bdf":"0000:01:10.0","sta`,
		"newer version":    `{"version":2,"bdf":"0000:01:10.0","state":"idle","generation":1}`,
		"no version":       `{"bdf":"0000:01:10.0","state":"idle","generation":1}`,
		"unknown field":    `{"version":1,"bdf":"0000:01:10.0","state":"idle","generation":1,"shared":true}`,
		"other VF":         `{"version":1,"bdf":"0000:01:10.1","state":"idle","generation":1}`,
		"unknown state":    `{"version":1,"bdf":"0000:01:10.0","state":"lent","generation":1}`,
		"leased by none":   `{"version":1,"bdf":"0000:01:10.0","state":"leased","generation":1}`,
		"leased by ''":     `{"version":1,"bdf":"0000:01:10.0","state":"leased","generation":1,"owner":{"sandbox":""}}`,
		"idle, but leased": `{"version":1,"bdf":"0000:01:10.0","state":"idle","generation":1,"owner":{"sandbox":"a"}}`,
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

func TestJournalFullDisk(t *testing.T) {
	j := journal(filepath.Join(t.TempDir(), "missing"))
	if err := j.write(entry{BDF: someBDF, State: Idle}); err == nil {
		t.Error("a write into nowhere worked")
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte(`{"version":1,"bdf":"0000:01:10.0","state":"leased","generation":1,"owner":{"sandbox":"a","pid":1,"start_ticks":2}}`))
	f.Add([]byte(`{"version":1,"bdf":"0000:01:10.0","state":"idle","generation":18446744073709551615}`))
	f.Add([]byte(`{"version":1`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := decodeEntry(data, someBDF)
		if err != nil {
			return
		}
		if (e.State == Leased) != (e.Owner != nil && e.Owner.Sandbox != "") || e.BDF != someBDF {
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
