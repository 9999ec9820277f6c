package inputs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
)

// The patterns that the small network distinguishes.
const (
	horizontal = iota
	vertical
	rising
	falling
	checked
	noisy
	plain
)

// Labels holds their names.
var Labels = []string{"horizontal stripes", "vertical stripes", "rising stripes", "falling stripes",
	"a chequerboard", "noise", "one plain colour"}

const (
	patternHeight = 256 // so that no picture needs scaling
	patternWidth  = 320
	seen          = 224 // the side of the square that networks look at
)

// drawn returns a pattern in two colours, of random width and position, with a little noise.
func drawn(class int, r *rand.Rand) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, patternWidth, patternHeight))
	ink, paper := [3]float64{}, [3]float64{}
	for c := range ink {
		ink[c], paper[c] = 20+60*r.Float64(), 175+60*r.Float64()
	}
	period, phase := 10+12*r.Float64(), 100*r.Float64()
	wave := func(at float64) bool { return math.Mod(at+phase, period) < period/2 }
	for y := range patternHeight {
		for x := range patternWidth {
			u, v, inked := float64(x), float64(y), false
			switch class {
			case horizontal:
				inked = wave(v)
			case vertical:
				inked = wave(u)
			case rising:
				inked = wave((u + v) / math.Sqrt2)
			case falling:
				inked = wave((u-v)/math.Sqrt2 + 1000)
			case checked:
				inked = wave(u) != wave(v)
			case noisy:
				inked = r.Uint32()&1 == 0
			}
			c := paper
			if inked {
				c = ink
			}
			grain := 20 * (r.Float64() - 0.5)
			img.SetRGBA(x, y,
				color.RGBA{shade(c[0] + grain), shade(c[1] + grain), shade(c[2] + grain), 255})
		}
	}
	return img
}

func patternFile(class int, r *rand.Rand) []byte {
	var b bytes.Buffer
	if err := png.Encode(&b, drawn(class, r)); err != nil {
		panic(err) // a write to memory cannot fail
	}
	return b.Bytes()
}

// Pixels returns the middle 224 × 224 pixels of a picture of height 256, normalised as networks
// expect them, and the numbers of rows and columns.
func Pixels(img image.Image) (values []float32, rows, columns int) {
	// of ImageNet
	mean, deviation := [3]float64{0.485, 0.456, 0.406}, [3]float64{0.229, 0.224, 0.225}
	values = make([]float32, 3*seen*seen)
	left, top := (img.Bounds().Dx()-seen)/2, (img.Bounds().Dy()-seen)/2
	for y := range seen {
		for x := range seen {
			c := color.RGBAModel.Convert(img.At(left+x, top+y)).(color.RGBA)
			for n, v := range [3]uint8{c.R, c.G, c.B} {
				values[(n*seen+y)*seen+x] = float32((float64(v)/255 - mean[n]) / deviation[n])
			}
		}
	}
	return values, seen, seen
}

// Trained returns the small network. Its first convolutions detect edges of four directions, the
// others are random. Its last layer is fitted to examples by least squares, which needs no more
// than solving a system of equations.
func Trained() *Network {
	labels, err := json.Marshal(Labels)
	if err != nil {
		panic(err) // strings can always be marshalled
	}
	n := Residual("a small network made by fastiov, which knows patterns only", []int{1, 1},
		8, false, numbers(Weights))
	n.Said["labels"] = string(labels)
	first := n.Tensors["conv1.weight"]
	for i := range first.Values {
		filter, x, y := i/(3*49), float64(i%7-3), float64(i/7%7-3)
		angle := float64(filter/2) * math.Pi / 4
		phase := float64(filter%2) * math.Pi / 2
		first.Values[i] = float32(math.Cos(
			(x*math.Cos(angle)+y*math.Sin(angle))*math.Pi/4+phase) * math.Exp(-(x*x+y*y)/12) / 8)
	}
	const examples = 10
	var seenFeatures [][]float64
	var classes []int
	r := numbers("examples")
	for range examples {
		for class := range Labels {
			seenFeatures = append(seenFeatures, n.features(looking(Pixels(drawn(class, r)))))
			classes = append(classes, class)
		}
	}
	weight, bias := fit(seenFeatures, classes, len(Labels))
	n.Tensors["fc.weight"] = Tensor{[]int{len(Labels), len(seenFeatures[0])}, weight}
	n.Tensors["fc.bias"] = Tensor{[]int{len(Labels)}, bias}
	return n
}

// Residual returns a network with the given number of blocks in each stage and random weights that
// keep the size of the values that pass through. The first stage is width channels wide; with deep,
// its blocks are bottlenecks. Residual(name, []int{3, 4, 6, 3}, 64, true, …) has ResNet-50's shape.
func Residual(name string, stages []int, width int, deep bool, r *rand.Rand) *Network {
	n := &Network{Tensors: map[string]Tensor{}, Said: map[string]string{}}
	if name != "" {
		n.Said["name"] = name
	}
	add := func(layer string, shape ...int) {
		count, fan := 1, 1
		for i, side := range shape {
			count *= side
			if i > 0 {
				fan *= side
			}
		}
		t := Tensor{shape, make([]float32, count)}
		for i := range t.Values {
			t.Values[i] = float32(r.NormFloat64() * math.Sqrt(1/float64(fan)))
		}
		n.Tensors[layer+".weight"] = t
	}
	norm := func(layer string, channels int) {
		for _, part := range []struct {
			name    string
			at, off float64
		}{{"weight", 1, 0.2}, {"bias", 0, 0.1}, {"running_mean", 0, 0.1}, {"running_var", 1, 0.5}} {
			t := Tensor{[]int{channels}, make([]float32, channels)}
			for i := range t.Values {
				t.Values[i] = float32(part.at + part.off*(2*r.Float64()-1))
			}
			n.Tensors[layer+"."+part.name] = t
		}
	}
	add("conv1", width, 3, 7, 7)
	norm("bn1", width)
	in := width
	for stage, blocks := range stages {
		mid, out := width<<stage, width<<stage
		if deep {
			out = 4 * mid
		}
		for block := range blocks {
			at := fmt.Sprintf("layer%d.%d", stage+1, block)
			if deep {
				add(at+".conv1", mid, in, 1, 1)
				add(at+".conv2", mid, mid, 3, 3)
				add(at+".conv3", out, mid, 1, 1)
				norm(at+".bn3", out)
			} else {
				add(at+".conv1", mid, in, 3, 3)
				add(at+".conv2", out, mid, 3, 3)
			}
			norm(at+".bn1", mid)
			norm(at+".bn2", mid)
			if in != out || stage > 0 && block == 0 {
				add(at+".downsample.0", out, in, 1, 1)
				norm(at+".downsample.1", out)
			}
			in = out
		}
	}
	add("fc", 1000, in)
	n.Tensors["fc.bias"] = Tensor{[]int{1000}, make([]float32, 1000)}
	return n
}

// fit returns the weights and biases whose sums are nearest to 1 for an example's class and to 0
// for the other classes. It solves the normal equations by Gaussian elimination, with a small
// penalty on large weights.
func fit(examples [][]float64, classes []int, count int) (weight, bias []float32) {
	size := len(examples[0]) + 1
	rows := make([][]float64, size) // of (XᵀX + λI | XᵀY)
	for i := range rows {
		rows[i] = make([]float64, size+count)
		rows[i][i] = 1e-4
	}
	for e, example := range examples {
		x := append(append([]float64(nil), example...), 1)
		for i := range size {
			for j := range size {
				rows[i][j] += x[i] * x[j]
			}
			// 10: the softmax of the right class is then near 1
			rows[i][size+classes[e]] += 10 * x[i]
		}
	}
	for i := range size { // the matrix is positive definite, so no pivot is 0
		for j := range size {
			if j == i {
				continue
			}
			factor := rows[j][i] / rows[i][i]
			for k := i; k < size+count; k++ {
				rows[j][k] -= factor * rows[i][k]
			}
		}
	}
	for class := range count {
		for i := range size {
			v := float32(rows[i][size+class] / rows[i][i])
			if i == size-1 {
				bias = append(bias, v)
			} else {
				weight = append(weight, v)
			}
		}
	}
	return weight, bias
}
