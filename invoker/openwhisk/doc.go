// Package openwhisk serves the part of OpenWhisk's API that creates, invokes and looks back at actions, under /api/v1.
//
// An invocation is accepted and given an id here; the pool finds or starts its sandbox; what the runtime answered becomes an
// activation record, kept in memory and, where the caller blocks, sent back. An activation runs on when its caller goes away, as
// OpenWhisk's do: its record can be asked for. Actions live in memory as long as the process.
//
//	answer.go       JSON in and out, and its bounds
//	auth.go         who may call
//	action.go       what an action is: parsing, checking, merging, showing
//	actions.go      PUT, GET, DELETE and the list of actions
//	invoke.go       POST: from the request to the HTTP answer
//	run.go          from the invocation to its activation record
//	activations.go  GET and the list of activations
//	metrics.go      what Prometheus sees
package openwhisk
