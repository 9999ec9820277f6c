// Package dashboards defines what Grafana and Prometheus show of fastiov. It is written in Go, and
// the files that Grafana and Prometheus read are generated from it and committed.
//
//	catalog.go     all metrics, taken from the code that counts; docs/metrics.md is made of it
//	metrics.md     the head of docs/metrics.md
//	model.go       the part of Grafana's dashboard format that we use
//	board.go       puts a dashboard together: rows of panels with one or a few queries each
//	tail.go        Tail latency
//	coldstart.go   One cold start
//	vfs.go         VF pool
//	node.go        Node
//	functions.go   Functions
//	lint.go        finds mistakes in dashboards
//
//	generate/      writes grafana/*.json and docs/metrics.md (`make generate`)
//	grafana/       the dashboards, and how Grafana is provisioned with them
//	prometheus/    what is scraped, recorded and alerted; promtool tests the rules
//	traces/        the store that traces go to
//
// A dashboard is right if the lint finds nothing and every query returns data from a Prometheus
// that scraped a real run. e2e has that test; `make test ONLY=full/dashboards` runs it.
package dashboards
