package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

// A pull does not wait for the disk. Its entries are published with a seal, the checksums of their
// files, and are written to the disk afterwards. After a power cut, an entry that the disk may not
// have in full is checked by its seal before it is used, and is otherwise as good as absent.
const (
	sealName    = "seal.json"
	settledName = "settled" // an empty file: the disk has the entry
	sealedKey   = ".sealed" // ends the key of an entry that has a seal, or is not whole
	syncStep    = 64 << 20
)

type seal struct {
	Boot  string // while this lasts, nothing that was written can be missing; empty: it may be
	Files []sealed
}

type sealed struct {
	Name   string
	Size   int64
	Digest string // of the first Size bytes; empty: nobody can tell
	Length int64  // with what follows them: zeros
}

var bootID = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(id))
})

// writeSeal seals the files in dir.
func writeSeal(dir string, boot string, files ...sealed) error {
	b, err := json.Marshal(seal{boot, files})
	if err != nil {
		return err
	}
	written := filepath.Join(dir, sealName+".new") // a full disk keeps the seal that is there
	if err := os.WriteFile(written, b, 0o644); err != nil {
		return err
	}
	return os.Rename(written, filepath.Join(dir, sealName))
}

// sealOf reads a file for its seal.
func sealOf(dir, name string) (sealed, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return sealed{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return sealed{name, n, "sha256:" + hex.EncodeToString(h.Sum(nil)), n}, err
}

// intact reports whether the entry is as it was sealed; an error says that nobody could look. One
// without a seal was synced before it was published.
func (c *Cache) intact(key string) (bool, error) {
	if !strings.HasSuffix(key, sealedKey) {
		return true, nil
	}
	dir := c.entry(key)
	if settled(dir) {
		return true, nil
	}
	s, err := readSeal(dir)
	cut := (*json.SyntaxError)(nil)
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &cut) || lost(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if s.Boot == "" || s.Boot != bootID() {
		for _, file := range s.Files {
			if holds, err := file.holds(dir); !holds || err != nil {
				return false, err
			}
		}
	}
	c.settle(key)
	return true, nil
}

// settled reports whether the disk has the entry.
func settled(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, settledName))
	return err == nil && info.Mode().IsRegular()
}

func readSeal(dir string) (s seal, err error) {
	b, err := os.ReadFile(filepath.Join(dir, sealName))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	return s, err
}

// lost reports whether an error of a read says that the disk has lost what was there.
func lost(err error) bool { return errors.Is(err, unix.EIO) || errors.Is(err, unix.EUCLEAN) }

// holds reports whether the file in dir has the contents that were sealed.
func (s sealed) holds(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, s.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, s.Size))
	if lost(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	info, err := f.Stat()
	return err == nil && n == s.Size && info.Size() == s.Length &&
		s.Digest == "sha256:"+hex.EncodeToString(h.Sum(nil)), err
}

// settling writes entries to the disk, one after the other.
type settling struct {
	ctx  context.Context
	end  context.CancelFunc
	turn sync.Mutex
	all  sync.WaitGroup
}

func (s *settling) close() {
	s.end()
	s.all.Wait()
}

// settle has the disk write an entry that was published before. If the cache is closed first, the
// entry stays sealed. If the disk fails, what it did not take may be missing from memory as well,
// so the entry is checked when it is opened again.
func (c *Cache) settle(key string) {
	s := &c.settling
	s.all.Go(func() {
		s.turn.Lock()
		defer s.turn.Unlock()
		dir := c.entry(key)
		if settled(dir) {
			return
		}
		err := syncEntry(s.ctx, dir)
		failpoint.Hit(failpoint.PullSettled)
		if err == nil {
			if err := guard(dir); err != nil {
				fmt.Fprintf(c.out, "image  %s  is not checked when it is read: %v\n", key, err)
			}
			err = os.WriteFile(filepath.Join(dir, settledName), nil, 0o644)
		}
		if err == nil || s.ctx.Err() != nil {
			return
		}
		if sealed, err := readSeal(dir); err == nil {
			_ = writeSeal(dir, "", sealed.Files...)
		}
	})
}

func syncEntry(ctx context.Context, dir string) error {
	for _, name := range children(dir) {
		if err := syncSteps(ctx, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return errors.Join(syncPath(dir), syncPath(filepath.Dir(dir)))
}

// syncSteps writes a file to the disk, step by step, so that it can be left.
func syncSteps(ctx context.Context, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	const write = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE |
		unix.SYNC_FILE_RANGE_WAIT_AFTER
	for at := int64(0); at < info.Size(); at += syncStep {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := unix.SyncFileRange(int(f.Fd()), at, syncStep, write); err != nil {
			break // a file system that cannot; Sync can
		}
	}
	return f.Sync()
}
