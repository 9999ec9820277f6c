package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// What an IPAM plugin answers without an address, or with one that nobody can read, fails the ADD.
func TestAnAnswerWithoutAnAddressIsRefused(t *testing.T) {
	dir := t.TempDir()
	for name, value := range map[string]string{"CNI_PATH": dir, "CNI_COMMAND": "ADD",
		"CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "eth0"} {
		t.Setenv(name, value)
	}
	for answer, why := range map[string]string{
		``:                                "gave no address",
		`,"ips":[]`:                       "gave no address",
		`,"ips":[{"gateway":"10.0.0.1"}]`: "an address",
		`,"ips":[{"address":"10.0.0.2/24"}],"routes":[{"gw":"10.0.0.1"}]`: "a route",
	} {
		plugin := "#!/bin/sh\ncat >/dev/null\necho '{\"cniVersion\":\"1.0.0\"" + answer + "}'\n"
		if err := os.WriteFile(filepath.Join(dir, "ipam"), []byte(plugin), 0o755); err != nil {
			t.Fatal(err)
		}
		text := []byte(`{"cniVersion":"1.0.0","name":"n","type":"fastiov","ipam":{"type":"ipam"}}`)
		c, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		c.RunDir = dir
		err = c.addressed(&skel.CmdArgs{StdinData: text}, Request{}, &Reply{}, &current.Result{})
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", answer, err)
		}
	}
}
