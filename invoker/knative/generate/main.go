// Command generate writes what Knative's own resource definitions say of their resources: names,
// printed columns and schemas. It is given the folder of Knative's module and the file to write.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// A definition holds the fields that are read of a CustomResourceDefinition.
type definition struct {
	Spec struct {
		Names    json.RawMessage `json:"names"`
		Versions []struct {
			Name    string          `json:"name"`
			Columns json.RawMessage `json:"additionalPrinterColumns"`
			Schema  struct {
				OpenAPI json.RawMessage `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
}

// A resource holds those that are written.
type resource struct {
	Names   json.RawMessage `json:"names"`
	Columns json.RawMessage `json:"columns"`
	Schema  json.RawMessage `json:"schema"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: generate MODULE FILE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func write(module, file string) error {
	var all []resource
	for _, name := range []string{"service", "configuration", "revision", "route"} {
		text, err := os.ReadFile(filepath.Join(module, "config/core/300-resources", name+".yaml"))
		if err != nil {
			return err
		}
		var d definition
		if err := yaml.Unmarshal(text, &d); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, v := range d.Spec.Versions {
			if v.Name == "v1" {
				all = append(all, resource{d.Spec.Names, v.Columns, v.Schema.OpenAPI})
			}
		}
	}
	out, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(out, '\n'), 0o644)
}
