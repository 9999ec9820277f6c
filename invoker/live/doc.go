// Package live serves the live page: what happens on the nodes now, and a button that fires a
// burst.
//
//	live.go    the handler: files, headers, access
//	watch.go   polls the nodes while the page has readers
//	start.go   a cold start as bars
//	feed.go    GET  /ui/feed   changes as server-sent events
//	burst.go   POST /ui/burst  the button
//	page/      the page as browsers get it
//
// The feed is a stream of server-sent events without names or ids. The data of each event is a JSON
// object, an Update. The first one holds everything. Each later one holds what has changed since:
// an absent member has not changed. The stream ends after some minutes, or when its reader stops
// reading; a reader that comes back gets everything again. A stage is sent as its index in the list
// of stages, a time in milliseconds.
package live
