package redis

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// A record may be missing although it is listed, for example after Redis evicted it against its
// settings. Other records are written nevertheless.
func TestARecordThatIsGoneHoldsUpNone(t *testing.T) {
	r := startServer(t)
	var said bytes.Buffer
	// room for a few records
	s, err := Open(t.Context(), r.URL(), 4000, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		id := fmt.Sprintf("%032d", i)
		record := record(id)
		record.Start = time.Unix(1_800_000_000, int64(i))
		if err := s.Refuse(t.Context(), record); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			err = r.Admin.Del(t.Context(), recordKey+id).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	closeIt(t, s)
	if said.Len() > 0 || s.Lost() > 0 {
		t.Errorf("%d lost: %s", s.Lost(), &said)
	}
}

func TestAFlushIsNoticed(t *testing.T) {
	r := startServer(t)
	s := r.open(t)
	defer closeIt(t, s)
	put(t, s, "before", 0)
	seen := follow(t, s)
	if err := r.Admin.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	seen.awaitGone(t, "before")
}
