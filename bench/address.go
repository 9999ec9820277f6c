package bench

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreeAddress returns a free loopback address, for a server that cannot choose its own port. It is
// below the ports that the kernel chooses by default, so it gives nobody else that one meanwhile.
func FreeAddress() (address string, err error) {
	for range 100 {
		address = fmt.Sprint("127.0.0.1:", 20_000+rand.IntN(12_000))
		var l net.Listener
		if l, err = net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", err
}
