// A static program that speaks to a server: it sends a line over TCP, or over the socket that it inherits as descriptor 3, and prints the answer.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"time"
)

func main() {
	to, line := os.Args[1], os.Args[2]
	answer, err := talk(to, line)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(answer)
}

func talk(to, line string) (string, error) {
	conn, err := dial(to)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := fmt.Fprintln(conn, line); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}

func dial(to string) (net.Conn, error) {
	if to != "inherited" {
		return net.Dial("tcp", to)
	}
	return net.FileConn(os.NewFile(3, "inherited"))
}
