package image

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// With what gzip is inflated is measured once for a model of CPU and the igzip of the machine, and
// kept as an entry of the cache: the speeds, and a folder of tools, which has a copy of that igzip.
const (
	speedsName = "speeds.json"
	toolsName  = "tools"
)

// inflate holds what this process found.
type inflate struct {
	mu    sync.Mutex
	with  oci.Inflating
	found bool
}

// inflating returns with what gzip is inflated here. Where that cannot be measured, it is what
// needs no tools.
func (c *Cache) inflating(ctx context.Context) oci.Inflating {
	c.inflate.mu.Lock()
	defer c.inflate.mu.Unlock()
	if c.inflate.found {
		return c.inflate.with
	}
	igzip := oci.FindIgzip()
	inputs := []string{"2", cpuModel()}
	for _, name := range slices.Sorted(maps.Keys(igzip)) {
		if info, err := os.Stat(igzip[name]); err == nil {
			inputs = append(inputs, name, fmt.Sprint(info.Size(), info.ModTime()))
		}
	}
	dir, err := c.Get(ctx, "inflater", inputs, func(
		ctx context.Context, dir string, _ func(string, ...any)) error {
		return measureIn(ctx, dir, igzip)
	})
	if err != nil {
		return oci.Inflating{}
	}
	var speeds map[string]float64
	if b, err := os.ReadFile(filepath.Join(dir, speedsName)); err == nil {
		_ = json.Unmarshal(b, &speeds)
	}
	c.inflate.with = oci.Inflating{Tools: filepath.Join(dir, toolsName),
		Inflater: oci.Fastest(speeds)}
	c.inflate.found = true
	return c.inflate.with
}

// Inflater returns the name of what gzip is inflated with here, if that was asked already.
func (c *Cache) Inflater() string {
	c.inflate.mu.Lock()
	defer c.inflate.mu.Unlock()
	return c.inflate.with.Inflater
}

// measureIn fills an entry with tools and speeds.
func measureIn(ctx context.Context, dir string, igzip map[string]string) error {
	tools := filepath.Join(dir, toolsName)
	if err := os.Mkdir(tools, 0o755); err != nil {
		return err
	}
	for name, file := range igzip {
		if err := copyProgram(filepath.Join(tools, name), file); err != nil {
			return err
		}
	}
	speeds, err := oci.Measure(ctx, filepath.Join(dir, "cell"), tools)
	if err != nil {
		return err
	}
	b, err := json.Marshal(speeds)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, speedsName), b, 0o644)
}

func copyProgram(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// cpuModel returns what the machine's first CPU calls itself.
func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if key, model, is := strings.Cut(line, ":"); is && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(model)
		}
	}
	return ""
}
