// Package runtimes holds the action proxies: the programs that run one function behind the OpenWhisk container protocol, one for each
// language. Each is a single file that needs nothing but its language's standard library.
package runtimes

import _ "embed"

// Python3 and NodeJS are the proxies' sources. Each listens on 127.0.0.1, port $PORT or 8080.
var (
	//go:embed python3/proxy.py
	Python3 []byte
	//go:embed nodejs/proxy.js
	NodeJS []byte
)
