// Command fastiov-cni is the CNI plugin of fastiov.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/fastiov/fastiov/node-agent/cni"
)

func main() {
	skel.PluginMainFuncs(cni.Funcs, version.All, "CNI plugin fastiov: VFs of this node")
}
