package build

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/ulikunitz/xz"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// modules holds the kernel modules in a tree, by name. A module's own .modinfo section says what it
// needs, so no index is read.
type modules struct {
	tree *rootfs.Tree
	path map[string]string
}

func modulesOf(t *rootfs.Tree) (*modules, error) {
	m := &modules{tree: t, path: map[string]string{}}
	err := t.Walk("/lib/modules", func(name string) {
		if base, _, ok := strings.Cut(path.Base(name), ".ko"); ok {
			m.path[moduleName(base)] = name
		}
	})
	return m, err
}

// moduleName is the kernel's name of a module: files and tools use "-" and "_" alike.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// A module is a decompressed kernel module.
type module struct {
	name  string
	bytes []byte
}

// inLoadOrder returns the named modules and all they need, each after what it needs.
func (m *modules) inLoadOrder(names ...string) ([]module, error) {
	var list []module
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		b, err := m.read(name)
		if err != nil {
			return err
		}
		needs, err := needsOf(b)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, need := range needs {
			if err := visit(need); err != nil {
				return err
			}
		}
		list = append(list, module{name, b})
		return nil
	}
	for _, name := range names {
		if err := visit(moduleName(name)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (m *modules) read(name string) ([]byte, error) {
	file, ok := m.path[name]
	if !ok {
		return nil, fmt.Errorf("the kernel package has no module %s", name)
	}
	b, err := m.tree.Read(file)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(file, ".xz") {
		if b, err = unxz(b); err != nil {
			return nil, fmt.Errorf("module %s: %w", name, err)
		}
	}
	return unsigned(b), nil
}

// unsigned cuts off the signature that the kernel would check when it loads the module. On an
// emulated CPU the check takes far longer than all else of loading, and the initrd is as trusted
// as the kernel beside it.
func unsigned(b []byte) []byte {
	const magic = "~Module signature appended~\n"
	const info = 12 // bytes of struct module_signature; the last field is the signature's length
	rest, ok := bytes.CutSuffix(b, []byte(magic))
	if !ok || len(rest) < info {
		return b
	}
	size := int(binary.BigEndian.Uint32(rest[len(rest)-4:])) + info
	if size > len(rest) {
		return b
	}
	return rest[:len(rest)-size]
}

func unxz(b []byte) ([]byte, error) {
	r, err := xz.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// needsOf reads depends= from a module's .modinfo section.
func needsOf(b []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no .modinfo section")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	var needs []string
	for field := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok && list != "" {
			for name := range strings.SplitSeq(list, ",") {
				needs = append(needs, moduleName(name))
			}
		}
	}
	return needs, nil
}
