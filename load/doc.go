// Package load holds the scenarios that k6 fires at fastiov (docs/functions-and-load.md). The
// tests here need neither k6 nor fastiov; those that run the scenarios are in e2e.
package load
