// Package runtimes holds the action proxies: for each language, a program that runs one function
// behind the OpenWhisk container protocol. Each is a single file that needs only its language's
// standard library.
package runtimes

import _ "embed"

// Python3 and NodeJS hold the proxies' sources. Each proxy listens on 127.0.0.1, port $PORT or
// 8080.
var (
	//go:embed python3/proxy.py
	Python3 []byte
	//go:embed nodejs/proxy.js
	NodeJS []byte
)
