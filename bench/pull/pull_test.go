package pull

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	first, last := p.turn(100), p.turn(2000)
	if late := last.Sub(first); late != 2*time.Second {
		t.Errorf("2000 bytes of 1000 a second have their turn after %v", late)
	}
	if early := begin.Add(100*time.Millisecond - catchUp).Sub(first); early > 0 {
		t.Errorf("the first bytes come %v too early", early)
	}
}

func TestArmsTakeTurns(t *testing.T) {
	b := Bench{Images: []Image{{Name: "i"}}, Arms: []Arm{{Name: "a"}, {Name: "b"}}, Mbits: []int{0},
		CPUs: []int{0}, Rounds: 3}
	var got []string
	for _, o := range b.orders() {
		got = append(got, o.Arm)
	}
	if !slices.Equal(got, []string{"a", "b", "b", "a", "a", "b"}) {
		t.Errorf("the order is %v", got)
	}
}

// slow is a receiver whose times are known.
type slow struct{ took time.Duration }

func (slow) Start(context.Context, string, int) error { return nil }
func (s slow) Pull(context.Context, string) (Pulled, error) {
	return Pulled{Took: s.took, CPU: s.took}, nil
}
func (slow) Process() int { return -1 }
func (slow) Stop()        {}

func TestRatiosAreToTheFirstArm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pulls.jsonl")
	for range 2 { // the second time, all is kept
		kept, err := Keep(path)
		if err != nil {
			t.Fatal(err)
		}
		arm := func(name string, took time.Duration) Arm {
			return Arm{Name: name, New: func(string) Receiver { return slow{took} }}
		}
		b := Bench{Images: []Image{{Name: "i", Bytes: 125_000, Whole: 1_000_000}}, Rounds: 3,
			Mbits: []int{1000}, CPUs: []int{0}, Out: io.Discard, Dir: t.TempDir(), Kept: kept,
			Arms: []Arm{arm("ours", 2*time.Millisecond), arm("theirs", 6*time.Millisecond)}}
		r, err := b.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := kept.Close(); err != nil {
			t.Fatal(err)
		}
		if len(kept.rounds) != 6 || len(r.Cells) != 2 {
			t.Fatalf("%d rounds, cells %+v", len(kept.rounds), r.Cells)
		}
		theirs := r.Cells[1]
		if theirs.Times != 3 || theirs.CPUTimes != 3 || theirs.OfWire != 6 || theirs.CPUNs != 6 {
			t.Errorf("%+v", theirs)
		}
		if err := r.Draw(t.TempDir(), "command"); err != nil {
			t.Error(err)
		}
	}
}
