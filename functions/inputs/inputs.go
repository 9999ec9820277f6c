// Package inputs makes the inputs of the sample functions: a picture, a document, a graph, and a
// network with a pattern to recognise. They are computed from a seed, not shipped: the bytes are
// always the same.
package inputs

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/color"
	"image/jpeg"
	"math"
	"math/rand/v2"
	"strings"
)

// The names of the inputs in the storage server.
const (
	Picture  = "samples/picture.jpg"
	Document = "samples/document.txt"
	Graph    = "samples/graph.bin"
	Pattern  = "samples/pattern.png"
	Weights  = "samples/weights.safetensors"
)

// Keys lists them.
var Keys = []string{Picture, Document, Graph, Pattern, Weights}

// Make returns the content of the object called key, one of Keys.
func Make(key string) []byte {
	switch key {
	case Picture:
		return picture(1600, 1200)
	case Document:
		return document(9_700_000)
	case Graph:
		return graph(100_000, 5)
	case Pattern:
		return patternFile(vertical, numbers(key))
	case Weights:
		return Trained().File()
	}
	panic("inputs: there is no " + key)
}

// numbers returns a random generator that is seeded with the name.
func numbers(name string) *rand.Rand {
	var seed [32]byte
	copy(seed[:], name)
	return rand.New(rand.NewChaCha8(seed))
}

// picture returns a landscape: a sky, a sun, three ranges of hills and the grain of a film.
func picture(width, height int) []byte {
	r := numbers(Picture)
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for x := range width {
		var hills [3]float64
		for n := range hills {
			at := float64(x) / float64(width) * 2 * math.Pi
			hills[n] = float64(height) * (0.45 + 0.15*float64(n) +
				0.06*math.Sin(at*(1.3+float64(n))+2*float64(n)) +
				0.02*math.Sin(at*(7+3*float64(n))))
		}
		for y := range height {
			c := sky(float64(x)/float64(width), float64(y)/float64(height))
			for n, top := range hills {
				if float64(y) > top {
					c = [3]float64{40 + 30*float64(n), 110 - 25*float64(n), 60 - 15*float64(n)}
				}
			}
			grain := 6 * (r.Float64() - 0.5)
			img.SetRGBA(x, y,
				color.RGBA{shade(c[0] + grain), shade(c[1] + grain), shade(c[2] + grain), 255})
		}
	}
	var b bytes.Buffer
	if err := jpeg.Encode(&b, img, &jpeg.Options{Quality: 90}); err != nil {
		panic(err) // a write to memory cannot fail
	}
	return b.Bytes()
}

func sky(x, y float64) [3]float64 {
	if math.Hypot((x-0.7)*4/3, y-0.2) < 0.09 {
		return [3]float64{250, 220, 120}
	}
	return [3]float64{90 + 120*y, 150 + 60*y, 235 - 40*y}
}

func shade(v float64) uint8 { return uint8(min(max(v, 0), 255)) }

// document returns prose of made-up words. As in any language, some words are far more frequent
// than others, so it compresses about as well as English.
func document(size int) []byte {
	r := numbers(Document)
	words := make([]string, 5000)
	for n := range words {
		var word strings.Builder
		for range 1 + r.IntN(4) {
			word.WriteByte("bcdfghklmnprstvw"[r.IntN(16)])
			word.WriteByte("aeiou"[r.IntN(5)])
		}
		words[n] = word.String()
	}
	var b bytes.Buffer
	for column := 0; b.Len() < size; {
		// the n-th word is about 1/n times as frequent as the first
		word := words[int(math.Pow(float64(len(words)), r.Float64()))-1]
		end := byte(' ')
		if column += len(word) + 1; column > 90 {
			end, column = '\n', 0
		}
		b.WriteString(word)
		b.WriteByte(end)
	}
	return b.Bytes()[:size]
}

// graph returns a graph of n nodes that grew like the web: each new node joins several earlier
// ones, preferably those that many have joined. scientific/scientific.py describes its format.
func graph(n, joins int) []byte {
	r := numbers(Graph)
	var ends []uint32 // both ends of every edge, so that a well-connected node is chosen often
	for node := 1; node < n; node++ {
		known := len(ends)
		for range min(node, joins) {
			other := uint32(r.IntN(node))
			if known > 0 {
				other = ends[r.IntN(known)]
			}
			ends = append(ends, uint32(node), other)
		}
	}
	offsets := make([]uint32, n+1)
	for _, end := range ends {
		offsets[end+1]++
	}
	for node := range n {
		offsets[node+1] += offsets[node]
	}
	targets, next := make([]uint32, len(ends)), append([]uint32(nil), offsets...)
	for e := 0; e < len(ends); e += 2 {
		for _, way := range [2][2]uint32{{ends[e], ends[e+1]}, {ends[e+1], ends[e]}} {
			targets[next[way[0]]] = way[1]
			next[way[0]]++
		}
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(n))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(targets)))
	for _, word := range append(offsets, targets...) {
		b = binary.LittleEndian.AppendUint32(b, word)
	}
	return b
}
