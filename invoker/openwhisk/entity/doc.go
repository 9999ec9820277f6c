// Package entity holds the things in an OpenWhisk namespace: actions, packages, bindings, triggers
// and rules. It is pure: it reads and writes their JSON, applies a change to one, and resolves
// names and parameters; it keeps nothing.
//
//	refusal.go   why something cannot be, with the HTTP status that says so; strict JSON in
//	name.go      /namespace/package/name and how clients abbreviate it
//	pairs.go     annotations and parameters
//	common.go    what all entities share, and the version that every change raises
//	action.go    actions and their exec
//	limits.go    what the limits of an action may be
//	package.go   packages and bindings
//	trigger.go   triggers and the rules that tie them to actions
//	runtimes.go  runtimes.json: which image runs a kind;  stemcell.go: what waits for a call
//	arguments.go parameters laid package < binding < action < caller
//
// Input from outside is decoded strictly: a name that stands twice in an object, text that is not
// UTF-8 and JSON too deep for its readers are refused. A value of these types never changes once it
// is shared: a change makes another.
package entity
