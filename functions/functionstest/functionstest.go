// Package functionstest runs the sample functions on this machine, and checks their results by
// other means.
package functionstest

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"image"
	_ "image/jpeg" // decodes one of the functions' formats
	_ "image/png"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"

	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/functions/inputs"
	"github.com/fastiov/fastiov/functions/storage"
)

// Each is made only once, since that takes a second or two.
var (
	made    = sync.OnceValue(makeInputs)
	trained = sync.OnceValue(inputs.Trained)
)

func makeInputs() map[string][]byte {
	content := map[string][]byte{}
	for _, key := range inputs.Keys {
		if key == inputs.Weights {
			content[key] = trained().File() // saves a second training: Make would return the same
		} else {
			content[key] = inputs.Make(key)
		}
	}
	return content
}

// Storage runs a storage server with the inputs on a loopback port until the test ends.
func Storage(t *testing.T) (port string) {
	t.Helper()
	server, err := storage.Open(t.TempDir(), storage.MaxObject)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(server)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		front.Close()
		server.Close()
	})
	u, err := url.Parse(front.URL)
	if err != nil {
		t.Fatal(err)
	}
	for key, content := range made() {
		Put(t, u.Port(), key, content)
	}
	return u.Port()
}

// Put stores an object in the server at a loopback port. Get reads one.
func Put(t *testing.T, port, key string, content []byte) {
	t.Helper()
	object(t, http.MethodPut, port, key, bytes.NewReader(content))
}

func Get(t *testing.T, port, key string) []byte {
	t.Helper()
	return object(t, http.MethodGet, port, key, nil)
}

func object(t *testing.T, method, port, key string, body io.Reader) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method,
		"http://127.0.0.1:"+port+"/"+key, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s, %s, %v", method, key, resp.Status, content, err)
	}
	return content
}

// Check checks a function's result and the object that it stored (nil: none).
func Check(t *testing.T, f functions.Function, result map[string]any, stored []byte) {
	t.Helper()
	if f.Parameters["output"] != "" {
		if result["output"] != f.Parameters["output"] {
			t.Fatalf("%s answered %v", f.Name, result)
		}
		if times, _ := result["ms"].(map[string]any); len(times) < 2 {
			t.Errorf("%s says no times: %v", f.Name, result)
		}
	}
	input := made()[f.Parameters["input"]]
	switch f.Name {
	case "hello", "hello-js":
		if result["greeting"] != "Hello, stranger!" {
			t.Errorf("%s greets %v", f.Name, result)
		}
	case "echo-net", "echo-net-js":
		if !bytes.Equal(stored, input) || result["bytes"] != float64(len(input)) {
			t.Errorf("%s stored %d bytes of %d", f.Name, len(stored), len(input))
		}
	case "image":
		checkThumbnail(t, input, stored)
	case "compression", "compression-js":
		if got := Unzip(t, stored); !bytes.Equal(got, input) {
			t.Errorf("%s packed %d bytes, of %d, or others", f.Name, len(got), len(input))
		}
	case "scientific", "scientific-js":
		checkDistances(t, input, stored, result)
	case "inference":
		CheckScores(t, trained(), stored)
		best, _ := result["classes"].([]any)
		if len(best) == 0 || best[0].(map[string]any)["label"] != inputs.Labels[1] ||
			result["network"] != trained().Said["name"] {
			t.Errorf("inference answered %v", result)
		}
	default:
		t.Errorf("nobody checks %s", f.Name)
	}
}

// CheckSame checks that a function stored the same here and there. Where the versions of a library
// may differ, only the picture, the content or the scores must be the same.
func CheckSame(t *testing.T, f functions.Function, here, there []byte) {
	t.Helper()
	var same bool
	switch f.Name {
	case "image":
		same = pixelsOff(decode(t, here), decode(t, there)) <= 1
	case "compression", "compression-js":
		same = bytes.Equal(Unzip(t, here), Unzip(t, there))
	case "inference":
		var a, b struct{ Scores []float64 }
		if err := errors.Join(json.Unmarshal(here, &a), json.Unmarshal(there, &b)); err != nil {
			t.Fatal(err)
		}
		same = len(a.Scores) == len(b.Scores)
		for n := range min(len(a.Scores), len(b.Scores)) {
			same = same && math.Abs(a.Scores[n]-b.Scores[n]) <= 1e-3*(1+math.Abs(a.Scores[n]))
		}
	default:
		same = bytes.Equal(here, there)
	}
	if !same {
		t.Errorf("%s stored %d bytes here and %d there, and they are not the same",
			f.Name, len(here), len(there))
	}
}

// pixelsOff returns the mean difference of two pictures' pixels, of at most 255.
func pixelsOff(a, b image.Image) (off float64) {
	if a.Bounds() != b.Bounds() {
		return 255
	}
	size := a.Bounds().Size()
	for n := range size.X * size.Y {
		other := rgb(b, n%size.X, n/size.X)
		for c, v := range rgb(a, n%size.X, n/size.X) {
			off += math.Abs(v-other[c]) / float64(3*size.X*size.Y)
		}
	}
	return off
}

// Unzip returns the content of an archive's only member.
func Unzip(t *testing.T, archive []byte) []byte {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil || len(r.File) != 1 || r.File[0].Name != "document.txt" {
		t.Fatalf("the archive: %v, %v", r, err)
	}
	member, err := r.File[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(member) // also checks the CRC
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// checkThumbnail compares each pixel with the mean of the pixels of the picture that it represents.
func checkThumbnail(t *testing.T, picture, thumbnail []byte) {
	t.Helper()
	large, small := decode(t, picture), decode(t, thumbnail)
	if small.Bounds() != image.Rect(0, 0, 100, 100) {
		t.Fatalf("the thumbnail is %v", small.Bounds())
	}
	side := min(large.Bounds().Dx(), large.Bounds().Dy())
	left, top, step := (large.Bounds().Dx()-side)/2, (large.Bounds().Dy()-side)/2, side/100
	var off float64
	for y := range 100 {
		for x := range 100 {
			var want [3]float64
			for n := range step * step {
				for c, v := range rgb(large, left+x*step+n%step, top+y*step+n/step) {
					want[c] += v / float64(step*step)
				}
			}
			for c, v := range rgb(small, x, y) {
				off += math.Abs(v-want[c]) / 30000
			}
		}
	}
	if off > 3 {
		t.Errorf("the thumbnail's pixels are off by %.1f of 255 in the mean", off)
	}
}

func decode(t *testing.T, content []byte) image.Image {
	t.Helper()
	img, _, err := image.Decode(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func rgb(img image.Image, x, y int) [3]float64 {
	r, g, b, _ := img.At(x, y).RGBA()
	return [3]float64{float64(r >> 8), float64(g >> 8), float64(b >> 8)}
}

// checkDistances proves distances right without a search: only the source has distance 0; the
// distances of an edge's two ends differ by at most one; every other node that was reached has a
// neighbour that is nearer by one.
func checkDistances(t *testing.T, graph, stored []byte, result map[string]any) {
	t.Helper()
	words, distances := words(graph), words(stored)
	nodes := int(words[0])
	offsets, targets := words[2:3+nodes], words[3+nodes:]
	if len(distances) != nodes {
		t.Fatalf("%d distances of %d nodes", len(distances), nodes)
	}
	var levels []float64
	for node, d := range distances {
		nearest := uint32(math.MaxUint32)
		for _, neighbour := range targets[offsets[node]:offsets[node+1]] {
			if other := distances[neighbour]; other > d+1 && d != math.MaxUint32 {
				t.Fatalf("node %d is %d away, its neighbour %d is %d", node, d, neighbour, other)
			}
			nearest = min(nearest, distances[neighbour])
		}
		if (d == 0) != (node == 0) || d != 0 && d != math.MaxUint32 && nearest != d-1 {
			t.Fatalf("node %d is %d away, its nearest neighbour %d", node, d, nearest)
		}
		if d == math.MaxUint32 {
			continue
		}
		for len(levels) <= int(d) {
			levels = append(levels, 0)
		}
		levels[d]++
	}
	told, _ := result["levels"].([]any)
	for n, count := range levels {
		if len(told) != len(levels) || told[n] != count {
			t.Fatalf("it says %v nodes are 0, 1, 2… away, and stored %v", told, levels)
		}
	}
}

func words(content []byte) []uint32 {
	all := make([]uint32, len(content)/4)
	for n := range all {
		all[n] = binary.LittleEndian.Uint32(content[4*n:])
	}
	return all
}

// CheckScores compares the scores that inference stored with the network's scores, which it
// computes value by value.
func CheckScores(t *testing.T, network *inputs.Network, stored []byte) {
	t.Helper()
	var answer struct{ Scores []float64 }
	if err := json.Unmarshal(stored, &answer); err != nil {
		t.Fatal(err)
	}
	want := network.Scores(inputs.Pixels(decode(t, made()[inputs.Pattern])))
	if len(answer.Scores) != len(want) {
		t.Fatalf("%d scores, want %d", len(answer.Scores), len(want))
	}
	var size float64
	for _, w := range want {
		size = max(size, math.Abs(float64(w)))
	}
	for n, got := range answer.Scores {
		// written so that a NaN fails too
		if off := math.Abs(got - float64(want[n])); !(off <= 1e-3*size) {
			t.Fatalf("score %d is %g, want %g; the largest is %g", n, got, want[n], size)
		}
	}
}
