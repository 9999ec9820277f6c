// Package api is the node API: the one thing that invoker and node-agent both see. `make generate`
// makes its Go code.
package api
