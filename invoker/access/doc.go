// Package access decides who may call and how much.
//
// A subject owns namespaces. Each has a key of its own: a uuid and a secret. Only the secret's
// SHA-256 is kept. Secrets are 64 random characters, so a plain hash protects them as well as a
// slow one, and is cheap enough for every call. An identity that is found by its key carries the
// limits of its namespace and its present usage: calls and fires in this minute of the clock, and
// calls under way.
//
// Nobody gets a former subject's namespace until everything in it has been deleted.
//
//	subject.go    a subject, its keys and limits
//	throttle.go   rates and concurrency, as functions of the time
//	directory.go  finds identities; the store feeds it, every call asks it
//	register.go   creates, changes and deletes subjects
//	claim.go      who owns a namespace
//	purge.go      deletes what a subject left
package access
