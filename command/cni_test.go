package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// Install writes a plugin that can be executed and a configuration that CNI's own library reads,
// and uninstall takes both back.
func TestCNIInstall(t *testing.T) {
	bin, conf := filepath.Join(t.TempDir(), "bin"), filepath.Join(t.TempDir(), "net.d")
	place := []string{"--bin-dir", bin, "--conf-dir", conf}
	run := func(args ...string) error {
		cmd := rootCmd()
		cmd.SetArgs(append(append([]string{"cni"}, args...), place...))
		cmd.SetOut(t.Output())
		return cmd.ExecuteContext(t.Context())
	}
	for range 2 { // again, it changes nothing
		if err := run("install", "--subnet", "10.1.0.0/24", "--subnet", "fd00:1::/64"); err != nil {
			t.Fatal(err)
		}
	}
	files, err := libcni.ConfFiles(conf, []string{".conflist"})
	if err != nil || len(files) != 1 {
		t.Fatalf("it wrote %v, %v", files, err)
	}
	list, err := libcni.ConfListFromFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	runtime := libcni.NewCNIConfigWithCacheDir([]string{bin}, t.TempDir(), nil)
	if _, err := runtime.ValidateNetworkList(t.Context(), list); err != nil {
		t.Errorf("the plugin: %v", err)
	}
	err = run("install", "--driver", "vfio")
	if err == nil || !strings.Contains(err.Error(), "says something else already") {
		t.Errorf("an install over another: %v", err)
	}
	if err := run("install", "--subnet", "10.1.0.0"); err == nil {
		t.Error("a subnet without its length was taken")
	}
	for range 2 {
		if err := run("uninstall"); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range []string{bin, conf} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left are %v, %v", left, err)
		}
	}
}
