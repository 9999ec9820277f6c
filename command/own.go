package command

import (
	"context"
	"log/slog"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
)

// An own node is one that a measurement makes for itself, with its invoker, in this process. It
// listens on loopback, at a port that the kernel chooses.
type own struct {
	*node
	front *front
	api   api.NodeClient
	closers
}

// openOwn opens a node and an invoker. Its caller may have to hold the lock of the run directory.
func openOwn(ctx context.Context, n *nodeFlags, i *invokerFlags, log *slog.Logger) (
	_ *own, err error,
) {
	ctx, cancel := context.WithCancel(ctx)
	o := &own{closers: closers{cancel}}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	i.listen, i.https, i.storage = "127.0.0.1:0", "", ""
	if o.front, err = i.open(ctx, n.runDir, n.stateDir, log); err != nil {
		return nil, err
	}
	o.onClose(o.front.close)
	if o.node, err = openNode(ctx, n, newRegistry(asBoth), log); err != nil {
		return nil, err
	}
	o.onClose(o.node.close)
	stop, err := serveMetrics(n.metrics, nobodyElse, metrics.Page(o.registry), nil, nil, log)
	if err != nil {
		return nil, err
	}
	o.onClose(stop)
	o.api = api.Local(o.agent)
	served := make(chan error, 1)
	go func() { served <- o.front.serve(ctx, i.pool(), o.api, o.registry) }()
	o.onClose(func() {
		cancel()
		<-served // the result has its answers
	})
	return o, nil
}

// aim aims a burst at it.
func (o *own) aim(b *bench.Burst) {
	b.URL, b.Key = "http://"+o.front.plain.Addr().String(), o.front.cfg.Key.String()
	b.Node = o.api
}
