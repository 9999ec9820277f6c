// Package live serves the live page: what happens on the nodes now, and a button that makes more of it happen.
//
//	live.go    the handler: files, headers, who may
//	watch.go   looking at the nodes, while somebody reads
//	start.go   a cold start as bars
//	feed.go    GET  /ui/feed   what changed, as server-sent events
//	burst.go   POST /ui/burst  the button
//	page/      the page as browsers get it
//
// The feed is a stream of server-sent events without names or ids; each one's data is a JSON object, an Update. The first tells all there
// is, each other one what has changed since: a member that is absent has not. It ends after some minutes, or when its reader takes nothing
// any more; whoever comes again is told all again. A stage is told as its place in the list of stages, a time in milliseconds.
package live
