package knative

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/jsonpath"
)

// asTable reports whether the client wants to print: it asks for a table first.
func asTable(r *http.Request) bool {
	first, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	return strings.Contains(first, "as=Table")
}

// table returns the columns of some objects.
func (k *kind) table(meta metav1.ListMeta, of []*entry) *metav1.Table {
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"}, ListMeta: meta,
		Rows: make([]metav1.TableRow, 0, len(of)),
	}
	for _, c := range k.Columns {
		format := ""
		if c.Name == "Name" {
			format = "name"
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, metav1.TableColumnDefinition{
			Name: c.Name, Type: c.Type, Format: format, Priority: c.Priority,
			Description: c.Path,
		})
	}
	for _, e := range of {
		o := e.itself()
		var tree any
		_ = json.Unmarshal(e.body, &tree) // it is our own
		row := metav1.TableRow{}
		var own map[string]any
		if k.cells != nil {
			own = k.cells(o)
		}
		for _, c := range k.Columns {
			if c.Path == "" {
				row.Cells = append(row.Cells, own[c.Name])
			} else {
				row.Cells = append(row.Cells, c.cell(tree))
			}
		}
		shown := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{
			Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}}
		shown.Name, shown.Namespace = e.name.name, e.name.namespace
		shown.UID, shown.Labels = o.GetUID(), o.GetLabels()
		shown.ResourceVersion = o.GetResourceVersion()
		shown.CreationTimestamp = o.GetCreationTimestamp()
		raw, _ := json.Marshal(&shown)
		row.Object = runtime.RawExtension{Raw: raw}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// cell returns what a column shows of an object; nil: nothing.
func (c *column) cell(tree any) any {
	path := jsonpath.New(c.Name).AllowMissingKeys(true)
	if path.Parse("{"+c.Path+"}") != nil {
		return nil
	}
	var text bytes.Buffer
	if path.Execute(&text, tree) != nil || text.Len() == 0 {
		return nil
	}
	if c.Type == "date" {
		at, err := time.Parse(time.RFC3339, text.String())
		if err != nil {
			return nil
		}
		return duration.HumanDuration(time.Since(at))
	}
	if c.Type == "integer" {
		return json.Number(text.String())
	}
	return text.String()
}
