package startup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// Reports keeps a report about each sandbox that failed, as it started or later, the newest Keep of
// them. A report has the cause, console, VMM log, kernel log, stage table and what else the driver
// left to be read.
type Reports struct {
	Dir   string
	Keep  int
	begin sync.Once // removes, before the first report, the rest of one that a crash cut off
}

// maxReportFile bounds how much one file of a sandbox may add to its report, because a guest writes
// its own console.
const maxReportFile = 1 << 20

// Write leaves the report of a sandbox that failed with cause. It must run while the sandbox's run
// directory still exists.
func (r *Reports) Write(spec sandbox.Spec, spans []timeline.Span, cause error) {
	var refused *Refused
	if errors.As(cause, &refused) { // nothing was started, there is nothing to look into
		return
	}
	report := &report{now: time.Now()}
	report.add("cause.txt", []byte(cause.Error()+"\n"))
	report.add("stages.txt", stageTable(spans))
	report.add("kernel.log", kernelLog())
	for _, kind := range []string{"*.log", "*.txt"} {
		files, _ := filepath.Glob(filepath.Join(spec.Dir, kind))
		for _, f := range files {
			report.add(filepath.Base(f), tail(f))
		}
	}
	_ = r.keep(spec.ID, report.bytes()) // a full disk must not turn one failure into two
	r.prune()
}

// keep writes a report beside its place, so that there it is whole or not at all.
func (r *Reports) keep(id string, content []byte) error {
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return err
	}
	r.begin.Do(r.sweep)
	path := r.path(id)
	err := written(path+unfinished, content)
	if err == nil {
		err = os.Rename(path+unfinished, path)
	}
	if err != nil {
		_ = os.Remove(path + unfinished)
	}
	return err
}

// written is on the disk when it returns: a name must not outlive its content.
func written(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// sweep removes reports that were being written when a former agent crashed.
func (r *Reports) sweep() {
	left, _ := filepath.Glob(filepath.Join(r.Dir, "*"+unfinished))
	for _, path := range left {
		_ = os.Remove(path)
	}
}

// A Kept report is one that can be read.
type Kept struct {
	ID   string
	Time time.Time
	Why  string
}

// List is of all reports, the newest first.
func (r *Reports) List() []Kept {
	entries, _ := os.ReadDir(r.Dir)
	var all []Kept
	for _, e := range entries {
		id, is := strings.CutSuffix(e.Name(), reportSuffix)
		info, err := e.Info()
		if !is || err != nil {
			continue
		}
		all = append(all, Kept{id, info.ModTime(), causeIn(r.path(id))})
	}
	slices.SortFunc(all, func(a, b Kept) int { return b.Time.Compare(a.Time) })
	return all
}

// causeIn reads the first file of a report.
func causeIn(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Sprintf("the report is damaged: %v", err)
	}
	t := tar.NewReader(z)
	if _, err := t.Next(); err != nil {
		return fmt.Sprintf("the report is damaged: %v", err)
	}
	cause, _ := io.ReadAll(io.LimitReader(t, maxReportFile))
	return strings.TrimSpace(string(cause))
}

// Read returns the report of a sandbox that failed.
func (r *Reports) Read(id string) ([]byte, error) {
	b, err := os.ReadFile(r.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf(
			"no report of %q; there is one for each of the last %d sandboxes that failed, in %s; `fastiov report` lists them",
			id, r.Keep, r.Dir)
	}
	return b, err
}

const (
	reportSuffix = ".tar.gz"
	unfinished   = ".new"
)

func (r *Reports) path(id string) string { return filepath.Join(r.Dir, id+reportSuffix) }

func (r *Reports) prune() {
	entries, _ := os.ReadDir(r.Dir)
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool {
		return strings.HasSuffix(e.Name(), unfinished) // somebody writes it just now
	})
	age := func(e os.DirEntry) time.Time {
		info, err := e.Info()
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return age(a).Compare(age(b)) })
	for len(entries) > r.Keep {
		os.Remove(filepath.Join(r.Dir, entries[0].Name()))
		entries = entries[1:]
	}
}

type report struct {
	now   time.Time
	files []tar.Header
	data  [][]byte
}

func (b *report) add(name string, data []byte) {
	b.files = append(b.files, tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)),
		ModTime: b.now})
	b.data = append(b.data, data)
}

func (b *report) bytes() []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	t := tar.NewWriter(z)
	for i := range b.files { // writes to memory do not fail
		_ = t.WriteHeader(&b.files[i])
		_, _ = t.Write(b.data[i])
	}
	_ = t.Close()
	_ = z.Close()
	return out.Bytes()
}

func stageTable(spans []timeline.Span) []byte {
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "stage\tbegin ms\tlength ms\tclock error ms\t")
	for _, s := range spans {
		ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t\n", s.Stage, ms(s.Begin.Sub(spans[0].Begin)),
			ms(s.End.Sub(s.Begin)), ms(s.Error))
	}
	w.Flush()
	return out.Bytes()
}

// tail is the last maxReportFile bytes of a file that a guest may have filled.
func tail(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return []byte(err.Error())
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxReportFile {
		_, _ = f.Seek(-maxReportFile, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, maxReportFile))
	return b
}

func kernelLog() []byte {
	buf := make([]byte, 256<<10)
	const readAll = 3 // SYSLOG_ACTION_READ_ALL: the last len(buf) bytes
	n, err := unix.Klogctl(readAll, buf)
	if err != nil {
		return []byte(err.Error())
	}
	return []byte(strings.ToValidUTF8(string(buf[:n]), "?"))
}
