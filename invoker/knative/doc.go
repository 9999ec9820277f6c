// Package knative serves the Knative Serving API: Services, Configurations, Revisions and Routes,
// and the programs that they describe, in sandboxes of the pool. No cluster is behind it.
//
//	kubectl, kn ─▶ api ─▶ change: defaults, checks ─▶ world.put ─▶ store (durable)
//	                 ▲                                                │ see
//	                 └── watch ◀── events, each encoded once ◀── world ┤
//	     reconcile: service → configuration, route → revision ◀───────┘
//	         └─ revision: the pool starts its first sandbox, which shows whether it is good
//	curl ─▶ road: host → status of a route → revision → lease → connection
//
// Types, defaults, checks, revisions of a template, traffic and host names are Knative's own
// packages. A document of the store is an object without its resourceVersion, which counts the
// changes that a process has seen.
//
//	knative.go    what an API is made of
//	kinds.go      what Knative's definitions and Kubernetes's types say, made by `make generate`
//	world.go      all objects and the newest events, over the store
//	behind.go     what is written later, as nobody waits for a disk to learn it
//	change.go     a change by Knative's rules;  core.go: by Kubernetes's;  cluster.go: its words
//	api.go        the verbs;  watch.go, table.go, discover.go, warning.go: their parts
//	choice.go     which objects a request is about;  page.go: a part of them;  readers.go: who stays
//	reconcile.go  brings about what objects say;  route.go: where traffic goes;  domains.go: names
//	certificates.go  by which those are shown
//	deletion.go   what goes with what
//	mirror.go     sandboxes as Pods, routes as Services, Events;  pods.go: their logs and columns
//	telling.go    Events, as often as they are said
//	demand.go     a revision as the pool and the node see it;  given.go: what its program is given
//	notgiven.go   what it cannot be given
//	tokens.go     tokens of service accounts;  renew.go: new ones while the program runs
//	probe.go      whether a sandbox lives and is ready
//	scale.go      how many sandboxes there are, by what load.go counts
//	road.go       the way of a request;  told.go: how it ended, counted and kept
package knative
