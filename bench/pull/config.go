package pull

// Configurations of containerd: as it comes, but for what Kubernetes needs, and of a newer one for
// its fastest pulls, into an overlay's folders, into EROFS images that index the archives, and into
// EROFS images of their own.
const (
	Default = `version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri"]
`
	Overlayfs = newer + `
[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
platform = "linux/amd64"
snapshotter = "overlayfs"
`
	EROFSIndex = EROFS + `[plugins.'io.containerd.differ.v1.erofs']
enable_tar_index = true
`
	EROFS = newer + `
[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
platform = "linux/amd64"
snapshotter = "erofs"
differ = "erofs"
[plugins.'io.containerd.service.v1.diff-service']
default = ['erofs', 'walking']
`
	newer = `version = 3
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
  "io.containerd.grpc.v1.cri"]
[plugins.'io.containerd.transfer.v1.local']
max_concurrent_downloads = 3
concurrent_layer_fetch_buffer = 16777216
max_concurrent_unpacks = 4
`
)
