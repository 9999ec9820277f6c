package oci

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fake inflates, at a known speed: what an accelerator needs to take part.
func fake(bytesPerSecond float64) inflater {
	return inflater{"fake", func(r io.Reader) (io.ReadCloser, error) {
		content, err := inflaters[0].open(r)
		return &paced{content, bytesPerSecond}, err
	}}
}

type paced struct {
	io.ReadCloser
	speed float64
}

func (p *paced) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b[:min(len(b), 64<<10)])
	time.Sleep(time.Duration(float64(n) / p.speed * float64(time.Second)))
	return n, err
}

// here makes the working directory one that has the tools, as the process that unpacks sees it.
func here(t *testing.T) (igzip bool) {
	t.Helper()
	dir := t.TempDir()
	tools := FindIgzip()
	if len(tools) == 0 && os.Getenv("FASTIOV_CI") != "" {
		t.Fatal("FASTIOV_CI is set, and this machine has no igzip (package isal)")
	}
	for name, file := range tools {
		b, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	return tools != nil
}

func zipped(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(content)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Every inflater does the same with gzip that is right, and notices what is wrong with it.
func TestInflatersAgree(t *testing.T) {
	has := here(t)
	noise := make([]byte, 3<<20)
	for n := range noise {
		noise[n] = byte(rand.Uint32() >> (n >> 16 % 32))
	}
	text := []byte(strings.Repeat("a line of text that repeats itself\n", 50_000))
	good := map[string][]byte{
		"nothing": nil, "a byte": []byte("x"), "text": text, "noise": noise,
	}
	for _, one := range append(inflaters[:len(inflaters):len(inflaters)], fake(1<<30)) {
		t.Run(one.name, func(t *testing.T) {
			if one.name == igzipName && !has {
				t.Skip("this machine has no igzip")
			}
			inflate := func(b []byte) ([]byte, error) {
				content, err := one.open(bytes.NewReader(b))
				if err != nil {
					return nil, err
				}
				defer content.Close()
				return io.ReadAll(content)
			}
			for name, content := range good {
				got, err := inflate(zipped(t, content))
				if err != nil || !bytes.Equal(got, content) {
					t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(content), err)
				}
				if name == "nothing" {
					continue
				}
				whole := zipped(t, content)
				for _, at := range []int{len(whole) - 1, len(whole) - 6} { // size, checksum
					bad := bytes.Clone(whole)
					bad[at] ^= 1
					if _, err := inflate(bad); err == nil {
						t.Errorf("%s: a flipped bit at %d of %d is not noticed", name, at, len(bad))
					}
				}
				if _, err := inflate(whole[:len(whole)-3]); err == nil {
					t.Errorf("%s: that it was cut short is not noticed", name)
				}
			}
			members := append(zipped(t, text), append(zipped(t, nil), zipped(t, noise)...)...)
			got, err := inflate(members)
			if err != nil || !bytes.Equal(got, append(bytes.Clone(text), noise...)) {
				t.Errorf("members: %d bytes, %v", len(got), err)
			}
			if _, err := inflate(nil); err == nil {
				t.Error("an empty stream is taken for gzip")
			}
			content, err := one.open(io.MultiReader(bytes.NewReader(zipped(t, text)),
				errorReader{}))
			if err == nil {
				_, err = io.ReadAll(content)
				content.Close()
			}
			if err == nil {
				t.Error("that its source broke off is not noticed")
			}
		})
	}
}

// A layer that stalls holds up nobody who has had enough of it.
func TestAStalledSourceHoldsUpNoClose(t *testing.T) {
	if !here(t) {
		t.Skip("this machine has no igzip")
	}
	stalled, more := io.Pipe()
	whole := zipped(t, bytes.Repeat([]byte("text"), 1<<20))
	go func() { _, _ = more.Write(whole[:len(whole)/2]) }()
	content, err := openIgzip(stalled)
	if err != nil {
		t.Fatal(err)
	}
	if err := content.Close(); err != nil {
		t.Error(err)
	}
	more.Close() // only now
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errors.New("broke off") }

func TestTheFastestInflaterIsChosen(t *testing.T) {
	member, err := sample()
	if err != nil {
		t.Fatal(err)
	}
	absent := inflater{"absent", func(io.Reader) (io.ReadCloser, error) {
		return nil, exec.ErrNotFound
	}}
	const slowest, fastest = 2 << 20, 40 << 20
	slow, fast := fake(slowest), fake(fastest)
	slow.name, fast.name = "slow", "fast"
	var speeds map[string]float64
	for range 20 { // others may want the machine just then
		speeds = measured([]inflater{absent, slow, fast}, member, 300*time.Millisecond)
		if speeds["slow"] > slowest || speeds["fast"] > fastest {
			t.Fatalf("measured more than they make: %v", speeds)
		}
		if speeds["fast"] > slowest {
			break
		}
	}
	if speeds["absent"] != 0 || speeds["slow"] == 0 || speeds["fast"] <= slowest {
		t.Errorf("measured %v", speeds)
	}
	if got := Fastest(map[string]float64{"go": 2, "klauspost": 1}); got != "go" {
		t.Errorf("chose %q", got)
	}
	if got := Fastest(nil); got != inflaters[0].name {
		t.Errorf("chose %q where nothing was measured", got)
	}
}

// What is measured is measured by the confined process, and igzip runs there.
func TestTheConfinedProcessMeasures(t *testing.T) {
	if !here(t) {
		t.Skip("this machine has no igzip")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	speeds, err := Measure(t.Context(), filepath.Join(t.TempDir(), "cell"), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range inflaters {
		if speeds[one.name] == 0 {
			t.Errorf("%s was not measured: %v", one.name, speeds)
		}
	}
	t.Logf("%v", speeds)
}

// What comes by a pipe is inflated alike, whatever of it comes first, and whoever reads it.
func TestPipesAreInflated(t *testing.T) {
	names := []string{"klauspost"}
	if here(t) {
		names = append(names, igzipName)
	}
	text := []byte(strings.Repeat("a line of text that repeats itself\n", 50_000))
	for _, name := range names {
		for first, sent := range map[int][]byte{
			0: zipped(t, text), 1: zipped(t, text), 2: zipped(t, text), 5: text,
		} {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, err1 := w.Write(sent[:first])
				for unread := first; unread > 0; { // or it comes at once
					time.Sleep(time.Millisecond)
					n, err := unix.IoctlGetInt(int(w.Fd()), unix.TIOCINQ)
					if unread = n; err != nil {
						t.Error(err)
						break
					}
				}
				_, err2 := w.Write(sent[first:])
				if err := errors.Join(err1, err2, w.Close()); err != nil {
					t.Error(err)
				}
			}()
			content, err := uncompressed(&timed{Reader: r}, name)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(content)
			if err := errors.Join(err, content.Close(), r.Close()); err != nil ||
				!bytes.Equal(got, text) {
				t.Errorf("%s, %d bytes first: %d bytes, %v", name, first, len(got), err)
			}
			p, is := content.(*process)
			direct, want := is && p.fed == nil, name == igzipName && (first == 0 || first == 2)
			if direct != want {
				t.Errorf("%s, %d bytes first: igzip reads the pipe: %v", name, first, direct)
			}
		}
	}
}
