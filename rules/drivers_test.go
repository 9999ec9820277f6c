package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// driverTable is the one place where a sandbox driver's name decides anything.
const driverTable = "command/drivers.go"

// What a driver needs is a field of its row: nothing else compares its name. Tests may, since they
// compare what they asked for.
func TestADriverIsKnownByNameInTheTableAlone(t *testing.T) {
	var names []string
	ast.Inspect(parsed(t, driverTable), func(n ast.Node) bool {
		if field, is := n.(*ast.KeyValueExpr); is {
			if key, is := field.Key.(*ast.Ident); is && key.Name == "name" {
				names = append(names, texts(field.Value)...)
			}
		}
		return true
	})
	if len(names) < 3 {
		t.Fatalf("%s has the drivers %q; where is the table?", driverTable, names)
	}
	sources(t, func(path string) {
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return
		}
		if path == driverTable {
			return
		}
		ast.Inspect(parsed(t, path), func(n ast.Node) bool {
			for _, text := range compared(n) {
				if slices.Contains(names, text) {
					t.Errorf("%s compares something with the driver's name %q;"+
						" make that a field of the table in %s", path, text, driverTable)
				}
			}
			return true
		})
	})
}

// compared returns the string literals that a node compares something with.
func compared(n ast.Node) []string {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if n.Op == token.EQL || n.Op == token.NEQ {
			return texts(n.X, n.Y)
		}
	case *ast.CaseClause:
		return texts(n.List...)
	}
	return nil
}

func texts(all ...ast.Expr) (found []string) {
	for _, e := range all {
		if literal, is := e.(*ast.BasicLit); is && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				found = append(found, text)
			}
		}
	}
	return found
}

func parsed(t *testing.T, path string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, read(t, path), 0)
	if err != nil {
		t.Fatal(err)
	}
	return file
}
