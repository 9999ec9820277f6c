package openwhisk

import (
	"net/http"
	"time"
)

// NoConnection is the answer to a new connection when there are too many.
var NoConnection = []byte(
	"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n" +
		"Content-Type: application/json\r\nContent-Length: 53\r\n\r\n" +
		`{"error":"too many connections; try again","code":""}`)

// Server returns a server for the API that no slow client can hold: headers, bodies and answers
// have their time.
func (a *API) Server() *http.Server {
	const transfer = 3 * time.Minute // of 64 MB of code by HTTP/2, 1/8 s there and back at most
	return &http.Server{
		Handler:           a,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       transfer,
		WriteTimeout:      transfer + a.cfg.Blocking + transfer,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
	}
}
