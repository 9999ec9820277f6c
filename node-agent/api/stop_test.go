package api

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// An undoer is a node whose calls take a while to end after their caller has gone.
type undoer struct {
	UnimplementedNodeServer
	begun chan struct{}
	undo  func()
}

func (u undoer) Start(ctx context.Context, _ *StartRequest) (*StartReply, error) {
	u.begun <- struct{}{}
	<-ctx.Done()
	u.undo()
	return nil, ctx.Err()
}

func (u undoer) Run(ctx context.Context, _ *RunRequest) (*RunReply, error) {
	_, err := u.Start(ctx, nil)
	return nil, err
}

// A server that has stopped has no call that still undoes: what calls use can be closed.
func TestAStopWaitsForCallsThatUndo(t *testing.T) {
	for name, call := range map[string]func(NodeClient) error{
		"start": func(node NodeClient) error {
			_, err := node.Start(t.Context(), &StartRequest{})
			return err
		},
		"run": func(node NodeClient) error {
			_, err := node.Run(t.Context(), &RunRequest{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			stopped, undone := make(chan struct{}), make(chan struct{})
			node := undoer{begun: make(chan struct{}), undo: func() {
				defer close(undone)
				select {
				case <-stopped:
					t.Error("it has stopped while a call undoes")
				case <-time.After(100 * time.Millisecond):
				}
			}}
			s := quiet(node)
			client := dialed(t, serve(t, "unix", filepath.Join(t.TempDir(), "socket"), s))
			ended := make(chan struct{})
			go func() { defer close(ended); _ = call(client) }()
			<-node.begun
			s.Stop()
			close(stopped)
			<-undone
			<-ended
		})
	}
}

// A call that does not end keeps no server from its end.
func TestAStopGivesUpACallThatDoesNotEnd(t *testing.T) {
	let := make(chan struct{})
	node := undoer{begun: make(chan struct{}), undo: func() { <-let }}
	s := quiet(node)
	s.patience = 10 * time.Millisecond
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	client := dialed(t, l.Addr().String())
	ended := make(chan struct{})
	go func() { defer close(ended); _, _ = client.Start(t.Context(), &StartRequest{}) }()
	<-node.begun
	s.Stop()
	<-served
	close(let)
	<-ended
}
