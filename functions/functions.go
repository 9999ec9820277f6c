// Package functions holds the sample functions: hello, echo-net, and four of the applications with
// which papers measure serverless computing (SeBS calls them thumbnailer, compression, graph-bfs
// and image-recognition). Each of the four fetches its input from a storage server, computes, and
// stores its result. inputs/ makes the inputs, storage/ is such a server.
//
// Each function has a folder: its code, manifest.yaml for wsk, service.yaml for kn.
package functions

import (
	"embed"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"

	"gopkg.in/yaml.v3"
)

// HelloPython and HelloNode greet the person named args.name.
var (
	//go:embed hello/hello.py
	HelloPython string
	//go:embed hello/hello.js
	HelloNode string
)

//go:embed hello echo-net image compression scientific inference
var files embed.FS

// A Function is one action as its manifest describes it.
type Function struct {
	Name       string
	Kind       string
	Code       string
	MemoryMB   int
	TimeoutMs  int
	Parameters map[string]string
}

// All returns the sample functions. They use the storage server at the URL storage.
func All(storage string) (all []Function) {
	manifests, err := fs.Glob(files, "*/manifest.yaml")
	if err != nil {
		panic(err) // the pattern is valid
	}
	for _, file := range manifests {
		all = append(all, read(file, storage)...)
	}
	return all
}

// read panics on an error: the files are part of the binary, so a test sees the error first.
func read(file, storage string) (in []Function) {
	content, err := files.ReadFile(file)
	if err != nil {
		panic(err)
	}
	var manifest struct {
		Packages map[string]struct {
			Actions map[string]struct {
				Function, Runtime string
				Limits            struct {
					MemorySize int `yaml:"memorySize"`
					Timeout    int
				}
				Inputs map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(content, &manifest); err != nil {
		panic(file + ": " + err.Error())
	}
	actions := manifest.Packages["default"].Actions
	for _, name := range slices.Sorted(maps.Keys(actions)) {
		a := actions[name]
		code, err := files.ReadFile(path.Join(path.Dir(file), a.Function))
		if err != nil {
			panic(err)
		}
		for parameter, value := range a.Inputs {
			a.Inputs[parameter] = os.Expand(value,
				func(name string) string { return map[string]string{"STORAGE": storage}[name] })
		}
		in = append(in, Function{name, a.Runtime, string(code), a.Limits.MemorySize,
			a.Limits.Timeout, a.Inputs})
	}
	return in
}
