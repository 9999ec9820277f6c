package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// A forgery is an image as its author made it, and as a registry hands it out.
type forgery struct {
	random   *rand.Rand
	tars     [][]byte
	layers   [][]byte // as they are sent
	config   *v1.ConfigFile
	manifest *v1.Manifest
	blobs    map[string][]byte // by digest
	raw      []byte            // manifest
	encoding string            // Content-Encoding of blobs
}

func sha(b []byte) v1.Hash {
	sum := sha256.Sum256(b)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

// forge makes the sound image of a seed.
func forge(seed uint64) *forgery {
	f := &forgery{random: rand.New(rand.NewPCG(seed, 14))}
	for range 1 + f.random.IntN(3) {
		f.tars = append(f.tars, f.archive())
	}
	f.pack()
	f.sign()
	return f
}

func (f *forgery) archive() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		_ = w.WriteHeader(&h)
		_, _ = w.Write(content)
	}
	put(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644},
		[]byte("node:x:1000:1001::/:\n"))
	for n := range 1 + f.random.IntN(8) {
		content := make([]byte, f.random.IntN(8000))
		for i := range content {
			content[i] = byte(f.random.Uint32())
		}
		name := fmt.Sprintf("dir%d/file%d", f.random.IntN(3), n)
		put(tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}, content)
		put(tar.Header{Name: name + ".ln", Typeflag: tar.TypeSymlink, Linkname: "../" + name}, nil)
	}
	put(tar.Header{Name: "dir0/.wh.gone", Typeflag: tar.TypeReg}, nil)
	_ = w.Close()
	b.Write(make([]byte, 512*f.random.IntN(20)))
	return b.Bytes()
}

var zstandard = sync.OnceValue(func() *zstd.Encoder {
	w, _ := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	return w
})

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

// pack compresses the archives and describes them.
func (f *forgery) pack() {
	f.layers = nil
	f.config = &v1.ConfigFile{
		OS: "linux", Architecture: "amd64",
		Config: v1.Config{Entrypoint: []string{"/run"}, User: "node"},
	}
	f.manifest = &v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	for _, archive := range f.tars {
		sent := archive
		switch f.random.IntN(3) {
		case 0:
			sent = gzipped(archive)
		case 1:
			sent = zstandard().EncodeAll(archive, nil)
		}
		f.layers = append(f.layers, sent)
		f.config.RootFS.DiffIDs = append(f.config.RootFS.DiffIDs, sha(archive))
	}
}

// sign has the manifest name what there is.
func (f *forgery) sign() {
	f.manifest.Layers, f.blobs = nil, map[string][]byte{}
	for _, layer := range f.layers {
		d := v1.Descriptor{MediaType: types.OCILayer, Size: int64(len(layer)), Digest: sha(layer)}
		f.manifest.Layers = append(f.manifest.Layers, d)
		f.blobs[d.Digest.String()] = layer
	}
	config, _ := json.Marshal(f.config)
	f.manifest.Config = v1.Descriptor{
		MediaType: types.OCIConfigJSON, Size: int64(len(config)), Digest: sha(config),
	}
	f.blobs[sha(config).String()] = config
	f.seal()
}

func (f *forgery) seal() { f.raw, _ = json.Marshal(f.manifest) }

// send has the registry answer with other bytes than the last layer's.
func (f *forgery) send(b []byte) {
	f.blobs[f.manifest.Layers[len(f.manifest.Layers)-1].Digest.String()] = b
}

func (f *forgery) last() []byte { return f.layers[len(f.layers)-1] }

// resign replaces the last layer by one that the author signs, with the diff id of archive.
func (f *forgery) resign(archive, sent []byte) {
	n := len(f.layers) - 1
	f.layers[n], f.config.RootFS.DiffIDs[n] = sent, sha(archive)
	f.sign()
}

// forgeries are changes of a sound image.
var forgeries = map[string]func(f *forgery){
	"swapped layer": func(f *forgery) { f.send(gzipped(f.archive())) },
	"swapped config": func(f *forgery) {
		f.blobs[f.manifest.Config.Digest.String()] = forgedConfig(f)
	},
	"short layer":        func(f *forgery) { f.send(f.last()[:f.random.IntN(len(f.last()))]) },
	"garbage sent after": func(f *forgery) { f.send(append(slices.Clone(f.last()), "garbage"...)) },
	"zeros sent after": func(f *forgery) {
		f.send(append(slices.Clone(f.last()), make([]byte, 512)...))
	},
	"a flipped bit": func(f *forgery) {
		b := slices.Clone(f.last())
		b[f.random.IntN(len(b))] ^= 1 << f.random.IntN(8)
		f.send(b)
	},
	"layer too small":  func(f *forgery) { f.manifest.Layers[0].Size++; f.seal() },
	"layer too large":  func(f *forgery) { f.manifest.Layers[0].Size--; f.seal() },
	"config too small": func(f *forgery) { f.manifest.Config.Size++; f.seal() },
	"a negative size":  func(f *forgery) { f.manifest.Layers[0].Size = -1; f.seal() },
	"an absurd size":   func(f *forgery) { f.manifest.Layers[0].Size = 1 << 60; f.seal() },
	"wrong diff id": func(f *forgery) {
		f.config.RootFS.DiffIDs[0] = sha([]byte("other"))
		f.sign()
	},
	"no diff id": func(f *forgery) { f.config.RootFS.DiffIDs = nil; f.sign() },
	"a weak digest": func(f *forgery) {
		f.manifest.Layers[0].Digest.Algorithm = "md5"
		f.seal()
	},
	"broken JSON":     func(f *forgery) { f.raw = f.raw[:f.random.IntN(len(f.raw))] },
	"foreign machine": func(f *forgery) { f.config.Architecture = "arm64"; f.sign() },
	"bad tar header": func(f *forgery) {
		b := slices.Clone(f.tars[len(f.tars)-1])
		b[148] ^= 0x7f // of the first header's checksum
		f.resign(b, gzipped(b))
	},
	"tar cut short": func(f *forgery) {
		b := f.tars[len(f.tars)-1][:512+5]
		f.resign(b, gzipped(b))
	},
	"garbage after the archive": func(f *forgery) {
		b := append(slices.Clone(f.tars[len(f.tars)-1]), "garbage"...)
		f.resign(b, gzipped(b))
	},
	"garbage after gzip": func(f *forgery) {
		b := f.tars[len(f.tars)-1]
		f.resign(b, append(gzipped(b), "garbage"...))
	},
	"zeros without end": func(f *forgery) {
		b := append(slices.Clone(f.tars[len(f.tars)-1]), make([]byte, 64<<20)...)
		f.resign(b, gzipped(b))
	},
	"a whiteout of ..": func(f *forgery) {
		b := one(tar.Header{Name: "a/.wh...", Typeflag: tar.TypeReg}, nil)
		f.resign(b, gzipped(b))
	},
	"passwd bomb": func(f *forgery) {
		b := one(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Size: 48 << 20},
			make([]byte, 48<<20))
		f.resign(b, gzipped(b))
	},
	"file bomb": func(f *forgery) { // of which there is but the beginning
		var b bytes.Buffer
		_ = tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg,
			Size: 1 << 33})
		f.resign(b.Bytes(), gzipped(b.Bytes()))
	},
	"zstd window bomb": func(f *forgery) { // a frame that asks for 2 GiB to be kept
		frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0x00, 0x00}
		f.resign(nil, frame)
	},
	"config bomb": func(f *forgery) {
		f.config.Author = strings.Repeat("x", 5<<20)
		f.sign()
	},
	"manifest bomb": func(f *forgery) {
		f.manifest.Annotations = map[string]string{"x": strings.Repeat("x", 5<<20)}
		f.seal()
	},
	"Content-Encoding bomb": func(f *forgery) {
		f.encoding = "gzip"
		for digest, b := range f.blobs {
			f.blobs[digest] = gzipped(append(b, make([]byte, 16<<20)...))
		}
	},
}

// hugeForgeries take longer: one of each is enough.
var hugeForgeries = map[string]func(f *forgery){
	"2^20 tiny files": func(f *forgery) {
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		h := sha256.New()
		w := tar.NewWriter(io.MultiWriter(z, h))
		for n := range 1 << 20 {
			_ = w.WriteHeader(&tar.Header{Name: strconv.Itoa(n>>10) + "/" + strconv.Itoa(n),
				Typeflag: tar.TypeReg})
		}
		_ = w.Close()
		_ = z.Close()
		f.resign(nil, b.Bytes())
		f.config.RootFS.DiffIDs[len(f.layers)-1] = v1.Hash{Algorithm: "sha256",
			Hex: hex.EncodeToString(h.Sum(nil))}
		f.sign()
	},
	"links with long targets": func(f *forgery) {
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		w := tar.NewWriter(z)
		target := strings.Repeat("x/", 2000)
		for n := range 1 << 15 {
			_ = w.WriteHeader(&tar.Header{Name: strconv.Itoa(n), Typeflag: tar.TypeSymlink,
				Linkname: target})
		}
		_ = w.Close()
		_ = z.Close()
		f.resign(nil, b.Bytes())
	},
}

func one(h tar.Header, content []byte) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&h)
	_, _ = w.Write(content)
	_ = w.Close()
	return b.Bytes()
}

// forgedConfig is one of the same length that starts something else.
func forgedConfig(f *forgery) []byte {
	right := f.blobs[f.manifest.Config.Digest.String()]
	return bytes.Replace(right, []byte("/run"), []byte("/bad"), 1)
}

// forger is a registry whose repositories are named KIND-SEED, KIND being a forgery's number or
// sound.
func forger(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/") // "", v2, REPOSITORY, blobs or manifests, digest
	if len(parts) < 5 {
		return // 200: no authentication
	}
	kind, number, _ := strings.Cut(parts[2], "-")
	seed, _ := strconv.ParseUint(number, 10, 64)
	f := forged(kind, seed)
	if parts[3] == "manifests" {
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		_, _ = w.Write(f.raw)
		return
	}
	b, have := f.blobs[parts[4]]
	if !have {
		http.NotFound(w, r)
		return
	}
	if f.encoding != "" {
		w.Header().Set("Content-Encoding", f.encoding)
	}
	_, _ = w.Write(b)
}

// forged remembers some: what makes up an image is asked for piece by piece.
func forged(kind string, seed uint64) *forgery {
	key := fmt.Sprint(kind, "-", seed)
	made.Lock()
	making := made.recent[key]
	if making == nil {
		for old := range made.recent {
			if len(made.recent) < 8 {
				break
			}
			delete(made.recent, old)
		}
		making = sync.OnceValue(func() *forgery { return forgeKind(kind, seed) })
		made.recent[key] = making
	}
	made.Unlock()
	return making()
}

func forgeKind(kind string, seed uint64) *forgery {
	f := forge(seed)
	if n, err := strconv.Atoi(kind); err == nil {
		all := slices.Concat(slices.Sorted(maps.Keys(forgeries)),
			slices.Sorted(maps.Keys(hugeForgeries)))
		if change := forgeries[all[n]]; change != nil {
			change(f)
		} else {
			hugeForgeries[all[n]](f)
		}
	}
	return f
}

var made = struct {
	sync.Mutex
	recent map[string]func() *forgery
}{recent: map[string]func() *forgery{}}

// serveForgeries is the forger as a process of its own, so that its memory is not counted as ours.
func serveForgeries() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	go func() { _ = http.Serve(l, http.HandlerFunc(forger)) }()
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test has ended
}

func nothingKept(t *testing.T, dir string) {
	t.Helper()
	for _, sub := range []string{"entries", "tmp"} {
		if left := children(dir + "/" + sub); len(left) > 0 {
			t.Errorf("%s has %v", sub, left)
		}
	}
}
