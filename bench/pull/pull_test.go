package pull

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/fastiov/fastiov/bench/kept"
	"github.com/fastiov/fastiov/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// layoutOf makes an image of one file.
func layoutOf(t *testing.T, content string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "file", Typeflag: tar.TypeReg, Mode: 0o644,
		Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(w, content)
	_ = w.Close()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Cmd = []string{"/x"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestOursPullsFromTheRegistry(t *testing.T) {
	r, err := ServeImages(map[string]string{"one/1": layoutOf(t, "content")})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var out bytes.Buffer
	in := strings.NewReader(r.Host + "/one/1:latest\n" + r.Host + "/absent:1\n")
	dir := filepath.Join(t.TempDir(), "cache")
	if err := Serve(t.Context(), dir, r.Host, in, &out); err != nil {
		t.Fatal(err)
	}
	var answers []answer
	for d := json.NewDecoder(&out); ; {
		var a answer
		if d.Decode(&a) != nil {
			break
		}
		answers = append(answers, a)
	}
	if len(answers) != 2 || answers[0].Error != "" || answers[0].Stages["find"] == 0 ||
		answers[1].Error == "" {
		t.Errorf("it says %+v", answers)
	}
}

// A wire gives as many bytes in a time as it has, however many connections there are.
func TestThePaceIsThatOfTheWire(t *testing.T) {
	var p pace
	if !p.turn(1 << 20).IsZero() {
		t.Error("without a bound there is something to wait for")
	}
	p.set(1000)
	begin := time.Now()
	first, last := p.turn(100_000), p.turn(2000)
	if late := last.Sub(first); late != 2*time.Second {
		t.Errorf("2000 bytes of 1000 a second have their turn after %v", late)
	}
	if early := begin.Add(100*time.Second - catchUp).Sub(first); early > 0 {
		t.Errorf("the first bytes come %v too early", early)
	}
}

func TestArmsTakeTurns(t *testing.T) {
	b := Bench{Images: []Image{{Name: "i"}}, Arms: []Arm{{Name: "a"}, {Name: "b"}, {Name: "c"}},
		Mbits: []int{0}, CPUs: []int{0}, Rounds: 3}
	var got []string
	for _, o := range b.orders() {
		got = append(got, o.Arm)
	}
	if want := []string{"a", "b", "c", "a", "c", "b", "c", "a", "b"}; !slices.Equal(got, want) {
		t.Errorf("the order is %v, not %v", got, want)
	}
}

func TestRatiosAreToTheFirstArm(t *testing.T) {
	of := Image{Name: "i", Bytes: 125_000, Whole: 1_000_000}
	kept := &kept.Rounds[Round]{}
	for n := range 3 {
		for arm, took := range map[string]float64{"ours": 2, "theirs": 6 * float64(n+1)} {
			o := Order{Image: "i", Mbits: 1000, Arm: arm, Round: n}
			if err := kept.Add(Round{Order: o, Of: of, Ms: took, CPUMs: took,
				Written: 2_000_000}); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := (&Bench{Images: []Image{of}, Arms: []Arm{{Name: "ours"}, {Name: "theirs"}}, Kept: kept}).
		result()
	if len(r.Cells) != 2 {
		t.Fatalf("cells %+v", r.Cells)
	}
	c := r.Cells[1]
	if c.Times.Min != 3 || c.Times.Median != 6 || c.Times.Max != 9 || c.CPUTimes != 6 ||
		c.OfWire != 12 || c.CPUNs != 12 || c.Written != 2 {
		t.Errorf("%+v", c)
	}
	if err := r.Draw(t.TempDir(), "command"); err != nil {
		t.Error(err)
	}
}

// A writer is a receiver that writes a MiB for each image, and deletes as much again.
type writer struct{ dir string }

func (w *writer) Start(_ context.Context, dir string, _ int) error { w.dir = dir; return nil }
func (w *writer) Pull(_ context.Context, ref string) (Pulled, error) {
	name := filepath.Join(w.dir, filepath.Base(ref))
	content := bytes.Repeat([]byte("written "), 1<<17)
	err := errors.Join(os.WriteFile(name, content, 0o644), os.WriteFile(name+"~", content, 0o644),
		os.Remove(name+"~"))
	return Pulled{Took: time.Millisecond}, err
}
func (*writer) Process() int { return -1 }
func (*writer) Stop()        {}

func TestEachPullHasADiskOfItsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a disk")
	}
	folder, dir := t.TempDir(), t.TempDir()
	run := func(about string) (*kept.Rounds[Round], error) {
		kept, err := kept.Open[Round](folder, "pulls.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		defer kept.Close()
		arm := Arm{Name: "w", About: about, New: func(string) Receiver { return &writer{} }}
		b := Bench{Images: []Image{{Name: "i", Whole: 1}}, Arms: []Arm{arm}, Mbits: []int{0},
			CPUs: []int{0}, Rounds: 2, Out: io.Discard, Dir: dir, Kept: kept}
		_, err = b.Run(t.Context())
		return kept, err
	}
	for range 2 { // the second time, all is kept
		kept, err := run("one")
		if err != nil {
			t.Fatal(err)
		}
		if len(kept.All) != 2 {
			t.Fatalf("%d rounds", len(kept.All))
		}
		for _, r := range kept.All {
			if r.Kept < 1<<20 || r.Kept > 1<<20+1<<16 || r.Written < 1<<20 || r.SyncedMs <= r.Ms {
				t.Errorf("%+v", r)
			}
		}
	}
	if _, err := run("another"); err == nil || !strings.Contains(err.Error(), "another folder") {
		t.Errorf("the pulls of another program: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("mounted: %s, %v", mounts, err)
	}
}

// A pull is compared with one of the same run only, and never with one on another machine.
func TestPullsOfOneRunAreCompared(t *testing.T) {
	one, other := time.Unix(1, 0), time.Unix(2, 0)
	ours := []Round{{Run: one, Ms: 30}, {Run: other, Ms: 90}}
	if q := times(ours, []Round{{Run: one, Ms: 10}}); q.Count != 1 || q.Median != 3 {
		t.Errorf("%+v", q)
	}
	k, err := kept.Open[Round](t.TempDir(), "pulls")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	b := Bench{Kept: k}
	for on, want := range map[string]bool{"here": true, "there": false, "": false} {
		k.All = []Round{{On: on}}
		if err := b.from("here"); (err == nil) != want ||
			err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("pulls on %q: %v", on, err)
		}
	}
}
