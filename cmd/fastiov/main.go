// Command fastiov is the node agent, its invoker, its testbed and its tools: every subcommand is
// one process of the system.
package main

import "github.com/fastiov/fastiov/command"

func main() { command.Main() }
