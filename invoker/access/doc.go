// Package access says who may call and how much.
//
// A subject owns namespaces, each with a key of its own: a uuid, and a secret of which only the SHA-256 is kept. Secrets are 64 random
// characters, so a plain hash is as good as a slow one, and a call can afford it. A namespace that is resolved from its key carries
// what it may use (Limits) and what it uses now (its Usage): calls and fires in this minute of the clock, and calls under way.
//
// A namespace that somebody had is given to nobody before all that it holds has been deleted.
//
//	subject.go    a subject, its keys and limits
//	throttle.go   rates and concurrency, by the time they are given
//	directory.go  who is who: fed by the store, asked by every call
//	register.go   making, changing and deleting subjects
//	claim.go      whose a namespace is
//	purge.go      deleting what a subject left
package access
