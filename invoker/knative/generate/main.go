// Command generate writes what there is to know of resources without their rules: names, printed
// columns and schemas. For Knative's, its own definitions say so; for Kubernetes's, its Go types.
// It is given the folder of Knative's module and the file to write.
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
		Group    string          `json:"group"`
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
	Group   string `json:"group,omitempty"`
	Version string `json:"version"`
	Names   any    `json:"names"`
	Columns any    `json:"columns"`
	Schema  any    `json:"schema"`
	Derived bool   `json:"derived,omitempty"`
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
	for _, of := range []struct{ name, version string }{
		{"service", "v1"}, {"configuration", "v1"}, {"revision", "v1"}, {"route", "v1"},
		{"domain-mapping", "v1beta1"},
	} {
		text, err := os.ReadFile(
			filepath.Join(module, "config/core/300-resources", of.name+".yaml"))
		if err != nil {
			return err
		}
		var d definition
		if err := yaml.Unmarshal(text, &d); err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		for _, v := range d.Spec.Versions {
			if v.Name == of.version {
				all = append(all, resource{Group: d.Spec.Group, Version: v.Name,
					Names: d.Spec.Names, Columns: v.Columns, Schema: v.Schema.OpenAPI})
			}
		}
	}
	out, err := json.MarshalIndent(append(all, core()...), "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(out, '\n'), 0o644)
}
