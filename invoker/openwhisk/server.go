package openwhisk

import (
	"net/http"
	"time"
)

// Server returns a server for the API that no slow client can hold: headers, bodies and answers have their time.
func (a *API) Server() *http.Server {
	const transfer = 2 * time.Minute // of 64 MB of code, at worst
	return &http.Server{
		Handler:           a,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       transfer,
		WriteTimeout:      transfer + a.cfg.Blocking + transfer,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
	}
}
