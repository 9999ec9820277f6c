package redis

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// Records that are listed are gone, as where Redis evicts what it was not to. Others are written all the same.
func TestARecordThatIsGoneHoldsUpNone(t *testing.T) {
	r := startServer(t)
	var said bytes.Buffer
	s, err := Open(t.Context(), r.URL(), 4000, slog.New(slog.NewTextHandler(&said, nil))) // a few records
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
