package openwhisk

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
)

// A list of large records is sent as it is read, and ends where it has become long enough.
func TestALongListIsSentAsItIsRead(t *testing.T) {
	c := newClient(t)
	const records, size = 40, 1 << 20
	for i := range records {
		record := &activation.Record{
			ID: fmt.Sprintf("%032x", i), Namespace: "guest", Name: "a", Path: "guest/a",
			Start: time.Unix(1_800_000_000, int64(i)), Logs: []string{strings.Repeat("x", size)},
		}
		c.api.cfg.Store.Finish(record.Kept())
	}
	rows := c.rows(c.do("GET", "activations?docs=true&limit=200", ""))
	if want := maxList / size; len(rows) < want-1 || len(rows) > want {
		t.Errorf("%d rows of %d bytes in an answer of %d", len(rows), size, maxList)
	}
	if rows := c.rows(c.do("GET", "activations?limit=200", "")); len(rows) != records {
		t.Errorf("%d rows without logs, of %d", len(rows), records)
	}
	if rows := c.rows(c.do("GET", "activations?skip=2147483648", "")); len(rows) != 0 {
		t.Errorf("%d rows after all", len(rows))
	}
	r := httptest.NewRequest("GET",
		"http://127.0.0.1:3233/api/v1/namespaces/_/activations?docs=true&limit=200", nil)
	r.SetBasicAuth(c.key.UUID, c.key.Secret)
	c.put("last") // the records before it are on the disk then
	most := &watermark{sink: sink{header: http.Header{}}}
	runtime.GC()
	most.see()
	before := most.live
	c.api.ServeHTTP(most, r)
	if more := most.live - before; more > 8*size {
		t.Errorf("%d MiB more are in memory while the list is sent", more>>20)
	}
}

// A watermark is an answer that nobody reads, and notes how much is in memory meanwhile.
type watermark struct {
	sink
	live int64
}

func (w *watermark) see() {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	w.live = max(w.live, int64(m.HeapAlloc))
}

func (w *watermark) Write(b []byte) (int, error) {
	w.see()
	return len(b), nil
}
