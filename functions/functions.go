// Package functions holds the sample functions that the tools deploy by themselves.
package functions

import _ "embed"

// HelloPython and HelloNode greet whoever args.name is.
var (
	//go:embed hello/hello.py
	HelloPython string
	//go:embed hello/hello.js
	HelloNode string
)
