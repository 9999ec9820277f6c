//go:build images

package image

import "testing"

// TestEveryDamageOfAPowerCutIsFound: no file that the disk does not have in full is ever used.
func TestEveryDamageOfAPowerCutIsFound(t *testing.T) { tryDamages(t, 1) }
