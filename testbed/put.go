package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/fastiov/fastiov/node-agent/beside"
)

// Put copies the file src to the host as /share/name.
func (h *Host) Put(ctx context.Context, name, src string) error {
	if same(src, filepath.Join(h.Share(), name)) {
		return nil
	}
	return h.replace(ctx, name, func(fresh string) error { return place(src, fresh) })
}

// PutLauncher copies the VMM's launcher to the host, beside a program that starts VMMs.
func (h *Host) PutLauncher(ctx context.Context) error {
	launcher, err := beside.Launcher.Open(ctx)
	if err != nil {
		return err
	}
	defer launcher.Close()
	return h.Put(ctx, beside.Launcher.Name, fmt.Sprintf("/proc/self/fd/%d", launcher.Fd()))
}

// Fill replaces the host's directory /share/name with what fill writes to dir.
func (h *Host) Fill(ctx context.Context, name string, fill func(dir string) error) error {
	return h.replace(ctx, name, func(fresh string) error {
		if err := os.Mkdir(fresh, 0o755); err != nil {
			return err
		}
		return fill(fresh)
	})
}

// replace makes a new file or directory in the shared directory and lets the host itself move it to
// its place: the host caches what it has seen of /share and would not notice a change from outside.
// Nobody sees an incomplete one, and the old one stays until the new one is complete.
func (h *Host) replace(ctx context.Context, name string, make func(fresh string) error) error {
	if !filepath.IsLocal(name) || strings.ContainsAny(name, "'\n") {
		return fmt.Errorf("%q is no path below /share", name)
	}
	made, err := os.MkdirTemp(h.Share(), ".new-")
	if err != nil {
		return diskFull(h.Share(), err)
	}
	defer os.RemoveAll(made)
	if err := make(filepath.Join(made, "it")); err != nil {
		return diskFull(h.Share(), err)
	}
	var complaint bytes.Buffer
	line := fmt.Sprintf("mkdir -p '%s' && rm -rf '%s' && mv '%s/it' '%s'",
		filepath.Dir(name), name, filepath.Base(made), name)
	if code, err := h.Run(ctx, line, nil, io.Discard, &complaint); err != nil || code != 0 {
		return fmt.Errorf("put %s into the testbed: %w",
			name, errors.Join(err, errors.New(strings.TrimSpace(complaint.String()))))
	}
	return nil
}
