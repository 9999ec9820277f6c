package activation

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

func TestStoredFormKeepsEverything(t *testing.T) {
	full := record()
	full.Response = Response{ApplicationError, json.RawMessage("{\"a\": \"<b>\",\n \"c\":1}")}
	full.TimedOut = true
	full.Binding, full.Cause, full.CausedBy = "guest/mine", "cafe", "sequence"
	full.Composed = &Composed{Topmost: true, Conductor: true, Ran: time.Second}
	everyFieldIsSet(t, reflect.ValueOf(*full), "Record")
	for _, r := range []*Record{full, {ID: "only"}} {
		data, err := r.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var back Record
		if err := back.UnmarshalBinary(data); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(&back, r) {
			t.Errorf("got\n%+v, want\n%+v", &back, r)
		}
	}
}

// everyFieldIsSet makes the test above notice a field that is added to Record and not to the record
// it tries.
func everyFieldIsSet(t *testing.T, v reflect.Value, path string) {
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s.%s is not tried", path, v.Type().Field(i).Name)
		}
	}
}

func TestStoredFormIsCompact(t *testing.T) {
	r := record()
	r.Cold = nil
	data, err := r.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > 400 {
		t.Errorf("%d bytes for a warm activation: %s", len(data), data)
	}
}

func FuzzStoredForm(f *testing.F) {
	data, _ := record().MarshalBinary()
	f.Add(data)
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r, again Record
		if r.UnmarshalBinary(data) != nil {
			return
		}
		once, err := r.MarshalBinary()
		if err != nil {
			t.Fatalf("read, but not written: %v", err)
		}
		if err := again.UnmarshalBinary(once); err != nil {
			t.Fatal(err)
		}
		if twice, _ := again.MarshalBinary(); !bytes.Equal(once, twice) {
			t.Errorf("%q became %q", once, twice)
		}
	})
}

func TestListName(t *testing.T) {
	for path, want := range map[string]string{"": "a", "guest/a": "a", "guest/pkg/a": "pkg/a"} {
		if got := (&Record{Name: "a", Path: path}).ListName(); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}

// An action that was called through a binding is listed by the binding's name.
func TestListNameOfABinding(t *testing.T) {
	r := &Record{Name: "a", Path: "other/pkg/a", Binding: "guest/mine"}
	if got := r.ListName(); got != "mine/a" {
		t.Errorf("%q", got)
	}
}

func BenchmarkMarshalBinary(b *testing.B) {
	r := record()
	r.Cold = nil
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.MarshalBinary(); err != nil {
			b.Fatal(err)
		}
	}
}
