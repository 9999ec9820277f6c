package knative

import (
	"fmt"
	"testing"
)

// Of very many unknown fields only those are written out that are told.
func TestVeryManyUnknownFields(t *testing.T) {
	const fields = 20_000
	var all []map[string]any // one for each run
	for range 2 {
		o := map[string]any{}
		for i := range fields {
			o[fmt.Sprint("field", i)] = i
		}
		all = append(all, o)
	}
	spec := services.shape.Properties["spec"]
	made := testing.AllocsPerRun(1, func() {
		changed, unknown := spec.prune("spec", all[0])
		if !changed || len(unknown) != mostUnknown || len(all[0]) != 0 {
			t.Errorf("%v, %d told, %d left", changed, len(unknown), len(all[0]))
		}
		all = all[1:]
	})
	if made > fields/10 {
		t.Errorf("%.0f allocations for %d fields", made, fields)
	}
}
