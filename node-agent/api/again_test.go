package api

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

// A node that is back is used soon: it is looked for again and again, with little time between.
func TestANodeThatIsAwayIsLookedForOften(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, hangUp, err := Dial(l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp()
	if err := l.(*net.UnixListener).SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = client.Status(t.Context(), &StatusRequest{})
	}()
	for n := range 5 { // by gRPC's own measure the fifth comes after 9 s
		conn, err := l.Accept()
		if err != nil {
			t.Errorf("it was looked for %d times: %v", n, err)
			break
		}
		conn.Close()
	}
	<-asked
}
