package bus

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch/couchtest"
)

func openActions(t *testing.T) (*couchtest.Server, *actions) {
	s := couchtest.New(t)
	db := couch.New(couch.Config{URL: s.URL, User: couchtest.User, Password: couchtest.Password})
	t.Cleanup(db.Close)
	return s, newActions(db)
}

func put(s *couchtest.Server, name, code string) (revision string) {
	return s.PutAction(fmt.Sprintf(
		`{"namespace":"guest","name":%q,"exec":{"kind":"nodejs:20","code":%q},"version":"0.0.1"}`,
		name, code), nil)
}

func TestAnActionIsReadOncePerRevision(t *testing.T) {
	s, a := openActions(t)
	first := put(s, "a", "one")
	var burst sync.WaitGroup
	for range 50 {
		burst.Go(func() {
			if got, err := a.get(t.Context(), "guest/a", first); err != nil ||
				got.Exec.Code != "one" {
				t.Errorf("%v %+v", err, got)
			}
		})
	}
	burst.Wait()
	// Late callers of the burst may have missed the read.
	if _, err := a.get(t.Context(), "guest/a", first); err != nil || s.Gets("guest/a") > 3 {
		t.Errorf("%v, read %d times", err, s.Gets("guest/a"))
	}
	second := put(s, "a", "two")
	// A caller that asks for an old revision gets the newest, when it has to be read.
	for _, revision := range []string{second, "", first} {
		if got, err := a.get(t.Context(), "guest/a", revision); err != nil ||
			got.Exec.Code != "two" {
			t.Errorf("%q: %v %+v", revision, err, got)
		}
	}
	s.DeleteAction("guest/a")
	if _, err := a.get(t.Context(), "guest/a", second); err != nil {
		t.Error(err)
	}
	a.forget("guest/a")
	a.forget("guest/never")
	if _, err := a.get(t.Context(), "guest/a", second); !errors.Is(err, couch.ErrNotFound) {
		t.Error(err)
	}
}

func TestCodeIsForgottenWhenThereIsTooMuch(t *testing.T) {
	s, a := openActions(t)
	a.most = 100_000
	code := strings.Repeat("x", a.most/4)
	for i := range 6 {
		name := fmt.Sprint("a", i)
		if _, err := a.get(t.Context(), "guest/"+name, put(s, name, code)); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.byID) != 3 || a.recent.Len() != 3 || a.size > a.most ||
		a.remembered("guest/a5", "1-0123abcd") == nil ||
		a.remembered("guest/a0", "1-0123abcd") != nil {
		t.Errorf("%d remembered, %d bytes", len(a.byID), a.size)
	}
}
