// Package rules holds the repository's own rules, each as a test: how packages are named and
// described, which way imports point, who may start processes, where versions stand, that generated
// code is up to date, that no promise rests on a stale figure, and that lines are short and
// comments plain.
package rules
