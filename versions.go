// Package fastiov is the root of the module. It holds what every part may read: the versions of
// everything that enters a build.
package fastiov

import _ "embed"

// VersionsYAML is versions.yaml, the only place that names a version.
//
//go:embed versions.yaml
var VersionsYAML []byte
