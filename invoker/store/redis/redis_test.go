package redis

import (
	"testing"

	"github.com/fastiov/fastiov/invoker/store/storetest"
)

func TestConformance(t *testing.T) { storetest.Run(t, startServer(t).fresh(t)) }

func BenchmarkStore(b *testing.B) { storetest.Benchmark(b, startServer(b).fresh(b), nil) }
