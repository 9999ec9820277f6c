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

// Put gives the host a copy of the file src as /share/name.
func (h *Host) Put(ctx context.Context, name, src string) error {
	if same(src, filepath.Join(h.Share(), name)) {
		return nil
	}
	return h.replace(ctx, name, func(fresh string) error { return place(src, fresh) })
}

// PutLauncher gives the host, beside a program that starts VMMs, the launcher that it needs for that.
func (h *Host) PutLauncher(ctx context.Context) error {
	launcher, err := beside.Launcher.Open(ctx)
	if err != nil {
		return err
	}
	defer launcher.Close()
	return h.Put(ctx, beside.Launcher.Name, fmt.Sprintf("/proc/self/fd/%d", launcher.Fd()))
}

// Fill gives the host the directory /share/name with what fill writes to dir, in place of what was there.
func (h *Host) Fill(ctx context.Context, name string, fill func(dir string) error) error {
	return h.replace(ctx, name, func(fresh string) error {
		if err := os.Mkdir(fresh, 0o755); err != nil {
			return err
		}
		return fill(fresh)
	})
}

// replace makes something new in the shared directory and has the host itself put it in its place: the host remembers what it has seen of
// /share and would not notice a change behind its back. Nobody sees a part of it, nor the old while the new is being made.
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
	line := fmt.Sprintf("mkdir -p '%s' && rm -rf '%s' && mv '%s/it' '%s'", filepath.Dir(name), name, filepath.Base(made), name)
	if code, err := h.Run(ctx, line, nil, io.Discard, &complaint); err != nil || code != 0 {
		return fmt.Errorf("put %s into the testbed: %w", name, errors.Join(err, errors.New(strings.TrimSpace(complaint.String()))))
	}
	return nil
}
