// Package dashboards is what Grafana and Prometheus show of fastiov, written in Go and committed as the files that they read.
//
//	catalog.go     every metric there is, taken from the code that counts: docs/metrics.md is made of it
//	model.go       the part of Grafana's dashboard format that we use
//	board.go       how a dashboard is put together: rows of panels, each of one or a few queries
//	tail.go        Tail latency
//	coldstart.go   One cold start
//	vfs.go         VF pool
//	node.go        Node
//	functions.go   Functions
//	lint.go        what makes a dashboard a bad one
//
//	generate/      writes grafana/*.json and docs/metrics.md (`make generate`)
//	grafana/       the dashboards, and how Grafana is provisioned with them
//	prometheus/    what is scraped, recorded and alerted; promtool tests the rules
//	traces/        the store that traces go to
//
// A dashboard is right when it has no lint and when every query of it returned data from a Prometheus that had scraped a real run:
// e2e has that test, `make test ONLY=full/dashboards` runs it.
package dashboards
