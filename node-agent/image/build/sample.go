package build

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
)

// A Sample is a container image to measure pulls by, made of Debian's packages: an OCI layout in
// an entry of the cache.
type Sample struct {
	Dir    string `json:"-"`
	Name   string `json:"name"`
	Layers int    `json:"layers"`
	Bytes  int64  `json:"bytes"` // of the layers as they are sent
	Whole  int64  `json:"whole"` // of the layers' archives
	Files  int    `json:"files"` // names in them
}

const sampleAbout = "sample.json"

// sampleLayers says what packages, with all that they depend on, each layer of a sample adds.
var sampleLayers = map[string][]string{
	"eight": {"bash coreutils dpkg findutils grep sed gzip tar util-linux", "python3 python3-pip",
		"git perl", "nodejs", "openjdk-17-jre-headless", "gcc g++ make", "python3-scipy",
		"golang-1.19-src"},
	"small": {"bash coreutils ca-certificates", "python3-minimal"},
	"many": {"bash coreutils", "npm libboost1.74-dev", "linux-headers-amd64 python3-sympy " +
		"golang-1.19-src"},
	"first": {"busybox-static"}, // with which a receiver begins
	"big":   {"openjdk-17-jdk-headless llvm-14 clang-14 python3-scipy"},
}

// Samples lists the images to measure pulls by.
var Samples = []string{"eight", "small", "many", "big"}

// Sample makes an image of Samples, or eight/N, the lowest N layers of "eight", or deal/N, the
// packages of "eight"'s second layer dealt out to N layers.
func (b *Builder) Sample(ctx context.Context, name string) (s Sample, err error) {
	layers, known := sampleLayers[name]
	deal := 0
	if !known {
		base, n, _ := strings.Cut(name, "/")
		if _, err := fmt.Sscan(n, &deal); err != nil || deal < 1 {
			return s, fmt.Errorf("no image %q to measure pulls by; there are %s, eight/N, deal/N",
				name, strings.Join(Samples, ", "))
		}
		switch {
		case base == "eight" && deal <= len(sampleLayers["eight"]):
			layers, deal = sampleLayers["eight"][:deal], 0
		case base == "deal":
			layers = []string{"python3-pip perl"}
		default:
			return s, fmt.Errorf("no image %q to measure pulls by", name)
		}
	}
	inputs := append([]string{"sample 1", versions().inputs(), fmt.Sprint(deal)}, layers...)
	s.Dir, err = b.GetLarge(ctx, "sample-"+name, inputs, 2<<30,
		func(ctx context.Context, dir string, say func(string, ...any)) error {
			return b.makeSample(ctx, dir, name, layers, deal, say)
		})
	if err != nil {
		return s, err
	}
	about, err := os.ReadFile(filepath.Join(s.Dir, sampleAbout))
	if err == nil {
		err = json.Unmarshal(about, &s)
	}
	return s, err
}

func (b *Builder) makeSample(ctx context.Context, dir, name string, layers []string, deal int,
	say func(string, ...any)) error {
	debs, err := b.sampleDebs(ctx, say, layers)
	if err != nil {
		return err
	}
	if deal > 0 {
		all := debs[0]
		debs = make([][]deb, deal)
		for n, d := range all {
			debs[n%deal] = append(debs[n%deal], d)
		}
	}
	s := Sample{Name: name, Layers: len(debs)}
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	for n, of := range debs {
		say("layer %d of %d: %d packages", n+1, len(debs), len(of))
		file := filepath.Join(dir, fmt.Sprintf("layer-%d", n))
		defer os.Remove(file) // the layout has it
		if err := s.writeLayer(ctx, file, of); err != nil {
			return err
		}
		layer, err := tarball.LayerFromFile(file, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return err
		}
		size, err := layer.Size()
		if err != nil {
			return err
		}
		s.Bytes += size
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return err
		}
	}
	return s.write(dir, img)
}

// sampleDebs returns the packages that each layer adds to those below it.
func (b *Builder) sampleDebs(ctx context.Context, say func(string, ...any), layers []string) (
	added [][]deb, err error) {
	var wanted []string
	seen := map[string]bool{}
	for _, layer := range layers {
		wanted = append(wanted, strings.Fields(layer)...)
		debs, err := b.fetch(ctx, say, versions(), wanted)
		if err != nil {
			return nil, err
		}
		debs = slices.DeleteFunc(debs, func(d deb) bool { return seen[d.name] })
		for _, d := range debs {
			seen[d.name] = true
		}
		added = append(added, debs)
	}
	return added, nil
}

// write writes the layout of the finished image.
func (s *Sample) write(dir string, img v1.Image) error {
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Cmd = []string{"/bin/true"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendImage(img)
	}
	if err != nil {
		return err
	}
	about, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, sampleAbout), about, 0o644)
}

// writeLayer writes the contents of packages as one compressed archive.
func (s *Sample) writeLayer(ctx context.Context, file string, debs []deb) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buffered := bufio.NewWriterSize(f, 1<<20)
	zipped := gzip.NewWriter(buffered)
	count := &counted{Writer: zipped}
	w := tar.NewWriter(count)
	dirs := map[string]bool{}
	for _, d := range debs {
		if err := s.addDeb(ctx, w, d, dirs); err != nil {
			return fmt.Errorf("package %s: %w", d.name, err)
		}
	}
	err = errors.Join(w.Close(), zipped.Close(), buffered.Flush())
	s.Whole += count.n
	return err
}

type counted struct {
	io.Writer
	n int64
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n += int64(n)
	return n, err
}

// addDeb copies a package's archive into the layer's, without the folders that are there already.
func (s *Sample) addDeb(ctx context.Context, w *tar.Writer, d deb, dirs map[string]bool) error {
	cmd := command(ctx, "dpkg-deb", "--fsys-tarfile", d.file)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = s.copyEntries(w, bufio.NewReaderSize(out, 1<<20), dirs)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	if ended := cmd.Wait(); err == nil && ended != nil {
		err = fmt.Errorf("%w: %s", ended, lastLine(stderr.Bytes()))
	}
	return err
}

func (s *Sample) copyEntries(w *tar.Writer, archive io.Reader, dirs map[string]bool) error {
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, archive)
			return err
		}
		if err != nil {
			return err
		}
		h.Name = strings.TrimPrefix(h.Name, "./")
		if h.Typeflag == tar.TypeDir {
			if h.Name == "" || dirs[h.Name] {
				continue
			}
			dirs[h.Name] = true
		}
		if h.Typeflag == tar.TypeLink {
			h.Linkname = strings.TrimPrefix(h.Linkname, "./")
		}
		h.Format = tar.FormatUnknown
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, r); err != nil {
			return err
		}
		s.Files++
	}
}
