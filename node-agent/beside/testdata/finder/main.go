// Command finder opens the launcher as an installed program does.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/fastiov/fastiov/node-agent/beside"
)

func main() {
	_, err := beside.Launcher.Open(context.Background())
	fmt.Println(err)
	if err != nil {
		os.Exit(1)
	}
}
