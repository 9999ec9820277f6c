package entity

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// cells is a runtimes.json with one kind and these stem cells.
func cells(list string) (*Runtimes, error) {
	return ParseRuntimes(fmt.Appendf(nil,
		`{"runtimes":{"go":[{"kind":"go:1","default":true,"image":{"name":"a"},"stemCells":[%s]}]}}`,
		list))
}

func TestReactiveStemCells(t *testing.T) {
	const cell = `{"initialCount":2,"memory":"256 MB","reactive":{"minCount":1,"maxCount":4,"ttl":"2 minutes","threshold":2,"increment":1}}`
	r, err := cells(cell)
	if err != nil {
		t.Fatal(err)
	}
	got := r.Families()["go"][0].StemCells
	want := []StemCell{{2, 256, &Reactive{Min: 1, Max: 4, TTL: Span(2 * time.Minute), Threshold: 2,
		Increment: 1}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if shown := asJSON(t, got[0]); shown != cell {
		t.Errorf("shown as %s", shown)
	}
	for wrong, says := range map[string]string{
		`"initialCount":2`:     `"initialCount":0`,
		`"256 MB"`:             `"0 MB"`,
		`"minCount":1`:         `"minCount":5`,
		`"maxCount":4`:         `"maxCount":0`,
		`"threshold":2`:        `"threshold":0`,
		`"increment":1`:        `"increment":5`,
		`"ttl":"2 minutes"`:    `"ttl":"0 s"`,
		`"2 minutes"`:          `"2 moons"`,
		`"minCount":1,`:        `"minCount":-1,`,
		`,"ttl":"2 minutes"`:   ``,
		`"initialCount":2,`:    ``,
		`"memory":"256 MB",`:   ``,
		`"memory":"256 MB","r`: `"memory":256,"r`,
	} {
		changed := strings.Replace(cell, wrong, says, 1)
		if _, err := cells(changed); err == nil || changed == cell {
			t.Errorf("%s was taken", changed)
		}
	}
}

func TestSpans(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1 day": 24 * time.Hour, "90 minutes": 90 * time.Minute, "2h": 2 * time.Hour,
		" 5 sec ": 5 * time.Second, "1500ms": 1500 * time.Millisecond, "1 milli": time.Millisecond,
	} {
		var s, again Span
		if err := json.Unmarshal([]byte(asJSON(t, text)), &s); err != nil ||
			time.Duration(s) != want {
			t.Errorf("%s: %s %v", text, time.Duration(s), err)
		}
		if err := json.Unmarshal([]byte(asJSON(t, s)), &again); err != nil || again != s {
			t.Errorf("%s was written as %s: %v", text, asJSON(t, s), err)
		}
	}
	for _, text := range []string{"", "5", "minutes", "-1 s", "1.5 s", "99999999999999999999 s",
		"9999999 days", "1 ds", "1 s s"} {
		var s Span
		if err := json.Unmarshal([]byte(asJSON(t, text)), &s); err == nil {
			t.Errorf("%q was taken as %s", text, time.Duration(s))
		}
	}
}
