//go:build node

package e2e

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/functions/functionstest"
	"github.com/fastiov/fastiov/testbed"
	"github.com/fastiov/fastiov/testbed/wire"
)

// These tests use the node that `fastiov up` has started in the testbed.
func upTestbed(t *testing.T) (host *testbed.Host, key string) {
	t.Helper()
	host, err := testbed.Open(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	var out bytes.Buffer
	if code, err := host.Run(t.Context(),
		"cat /var/lib/fastiov/key", nil, &out, os.Stderr); err != nil || code != 0 {
		t.Fatalf("no key: exit code %d, %v", code, err)
	}
	return host, strings.TrimSpace(out.String())
}

const fetch = `
def main(args):
    import socket
    with socket.create_connection((args["host"], args["port"]), 60) as s:
        s.sendall(b"which way?")
        return {"answer": s.recv(100).decode(), "from": s.getsockname()[0]}
`

// A function reaches a server outside the node, and on the wire its packets have the MAC of the VF
// in its record.
func TestAFunctionTalksThroughItsVF(t *testing.T) {
	host, key := upTestbed(t)
	server, err := net.Listen("tcp", "127.0.0.1:0") // the emulated network shows this as 10.0.2.2
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		c, err := server.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		question := make([]byte, 100)
		if _, err := c.Read(question); err == nil {
			_, _ = c.Write([]byte("through the VF"))
		}
	}()
	port := server.Addr().(*net.TCPAddr).Port

	call(t, key, http.MethodPut, "actions/fetch?overwrite=true",
		map[string]any{"exec": map[string]string{"kind": "python:3", "code": fetch}}, nil)
	t.Cleanup(func() { call(t, key, http.MethodDelete, "actions/fetch", nil, nil) })
	var started struct {
		ID string `json:"activationId"`
	}
	call(t, key, http.MethodPost, "actions/fetch", map[string]any{"host": "10.0.2.2", "port": port},
		&started)
	result, cold := await(t, key, started.ID)

	if result["answer"] != "through the VF" || result["from"] != cold.Address {
		t.Errorf("the function got %v; its VF's address is %s", result, cold.Address)
	}
	if macs := sources(t, host.Wire(0), port); len(macs) != 1 || !macs[cold.MAC] {
		t.Errorf("the wire saw %v talk to port %d, the VF's MAC is %s", macs, port, cold.MAC)
	}
}

// Every sample function starts cold, fetches its input through its VF, computes, and stores through
// its VF what the same code stores on this machine.
func TestTheFunctionsThroughTheirVFs(t *testing.T) {
	if testing.Short() {
		t.Skip("runs every sample function, cold")
	}
	host, key := upTestbed(t)
	port := functionstest.Storage(t)
	stored := func(f functions.Function) []byte {
		if f.Parameters["output"] == "" {
			return nil
		}
		return functionstest.Get(t, port, f.Parameters["output"])
	}
	natively := functions.All("http://127.0.0.1:" + port)
	macs := map[string]bool{}
	for n, f := range functions.All("http://10.0.2.2:" + port) {
		t.Run(f.Name, func(t *testing.T) {
			functionstest.Native(t, natively[n])
			native := stored(f)
			if native != nil {
				functionstest.Put(t, port, f.Parameters["output"], nil)
			}
			action := "actions/sample-" + f.Name
			var parameters []map[string]string
			for name, value := range f.Parameters {
				parameters = append(parameters, map[string]string{"key": name, "value": value})
			}
			status := call(t, key, http.MethodPut, action+"?overwrite=true", map[string]any{
				"exec": map[string]string{"kind": f.Kind, "code": f.Code}, "parameters": parameters,
				"limits": map[string]int{"memory": f.MemoryMB, "timeout": f.TimeoutMs},
			}, nil)
			if status != http.StatusOK {
				t.Fatalf("deploying it: %d", status)
			}
			defer call(t, key, http.MethodDelete, action, nil, nil)
			var started struct {
				ID string `json:"activationId"`
			}
			call(t, key, http.MethodPost, action, map[string]any{}, &started)
			result, cold := await(t, key, started.ID)
			functionstest.Check(t, f, result, stored(f))
			functionstest.CheckSame(t, f, native, stored(f))
			if f.Parameters["storage"] != "" {
				macs[cold.MAC] = true
			}
			t.Logf("%.1f s from the request to the answer, of which its own: %v ms",
				cold.EndToEnd/1000, result["ms"])
		})
	}
	for mac := range sources(t, host.Wire(0), portNumber(t, port)) {
		if !macs[mac] {
			t.Errorf("%s spoke to the storage server, which is no VF of these functions: %v",
				mac, macs)
		}
		delete(macs, mac)
	}
	if len(macs) > 0 {
		t.Errorf("the wire saw nothing of %v", macs)
	}
}

func portNumber(t *testing.T, port string) int {
	t.Helper()
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// sources lists the MACs that sent to a TCP port according to the wire's recording.
func sources(t *testing.T, recording string, port int) map[string]bool {
	t.Helper()
	macs := map[string]bool{}
	for frame, err := range wire.Frames(recording) {
		if err != nil {
			t.Fatal(err)
		}
		p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		eth, isEth := p.LinkLayer().(*layers.Ethernet)
		tcp, isTCP := p.TransportLayer().(*layers.TCP)
		if isEth && isTCP && int(tcp.DstPort) == port {
			macs[eth.SrcMAC.String()] = true
		}
	}
	return macs
}
