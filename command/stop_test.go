package command

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

// An undoer is a node whose starts take a while to end after their caller has gone.
type undoer struct {
	api.UnimplementedNodeServer
	begun chan struct{}
	undo  func()
}

func (u undoer) Start(ctx context.Context, _ *api.StartRequest) (*api.StartReply, error) {
	close(u.begun)
	<-ctx.Done()
	u.undo()
	return nil, ctx.Err()
}

// While a server waits for its calls, no other takes new ones.
func TestANodeThatClosesTakesNothingAnywhere(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	n := &node{log: log}
	near, far := filepath.Join(t.TempDir(), "near"), filepath.Join(t.TempDir(), "far")
	isClosed := func() bool {
		conn, err := net.Dial("unix", near)
		if err == nil {
			conn.Close()
		}
		return err != nil
	}
	node := undoer{begun: make(chan struct{}), undo: func() {
		for late := time.Now().Add(5 * time.Second); !isClosed(); {
			if time.Now().After(late) {
				t.Error("one server waits for its calls, another takes new ones")
				return
			}
		}
	}}
	for _, socket := range []string{near, far} {
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		n.serveOn(listener, api.NewServer(node, log))
	}
	client, hangUp, err := api.Dial(far, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp()
	ended := make(chan struct{})
	go func() { defer close(ended); _, _ = client.Start(t.Context(), &api.StartRequest{}) }()
	<-node.begun
	n.close()
	<-ended
}
