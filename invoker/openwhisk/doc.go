// Package openwhisk serves OpenWhisk's API under /api/v1: actions, packages, bindings, triggers,
// rules and activations.
//
// A call is accepted and given an id here. The pool finds or starts its sandbox. The runtime's
// answer becomes an activation record, kept in the store and, if the caller blocks, sent back. An
// activation runs on when its caller goes away, as OpenWhisk's do: its record can be asked for.
//
//	api.go          what an API is made of, and its routes
//	answer.go       JSON in and out, and its bounds;  body.go, list.go: what is long
//	auth.go         who calls, and from where;  denied.go: keys that open nothing, in the log
//	info.go         what the endpoint says about itself
//
//	catalog.go      the entities, decoded in memory; changes by compare-and-swap
//	resolve.go      from a name to an action with its parameters, and who is entitled to it
//	kinds.go        what is served alike for entities of all kinds
//	actions.go      PUT, GET, DELETE and lists: actions
//	packages.go     … packages and bindings
//	triggers.go     … triggers, and firing them
//	rules.go        … rules
//	activations.go  … activations
//
//	invoke.go       POST: from the request to the HTTP answer
//	call.go         starting a call and waiting for it, by a blocking caller or by nobody
//	compose.go      an activation that consists of others, its steps
//	sequence.go     … that a sequence names when it is put
//	conductor.go    … that a conductor names one by one
//	web.go          a web action: from any HTTP request to its answer
//	promise.go      what was promised is kept, across a crash too;  seal.go: its caller's key
//	run.go          from a call to the node and back
//	record.go       how that went
//	metrics.go      what Prometheus sees of refusals;  collect.go: of bounds
//	server.go       listeners and their bounds;  tls.go: certificates;  stop.go: how it ends
//
// Below it lie the rooms that do not need it: entity, activation, outcome, raw, runtime and web.
// Only web among them knows HTTP. bus joins a cluster without this package.
package openwhisk
