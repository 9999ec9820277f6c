package inputs

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
)

// A Tensor is an array of numbers in rows.
type Tensor struct {
	Shape  []int
	Values []float32
}

// A Network is a residual network, given by its tensors, which have torchvision's names. Its
// methods compute plainly, value by value, so that the function's own arithmetic can be checked
// against them.
type Network struct {
	Tensors map[string]Tensor
	Said    map[string]string // name and labels, for the file
}

// File returns the network as a safetensors file: the length of a JSON header, the header, the
// numbers.
func (n *Network) File() []byte {
	type entry struct {
		Type    string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	header, at := map[string]any{"__metadata__": n.Said}, 0
	for _, name := range slices.Sorted(maps.Keys(n.Tensors)) {
		t := n.Tensors[name]
		header[name] = entry{"F32", t.Shape, [2]int{at, at + 4*len(t.Values)}}
		at += 4 * len(t.Values)
	}
	text, err := json.Marshal(header)
	if err != nil {
		panic(err) // strings and numbers can always be marshalled
	}
	b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	for _, name := range slices.Sorted(maps.Keys(n.Tensors)) {
		for _, v := range n.Tensors[name].Values {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	}
	return b
}

// An activation is the output of a layer: channels of rows of columns.
type activation struct {
	channels, rows, columns int
	values                  []float32
}

func newActivation(channels, rows, columns int) activation {
	return activation{channels, rows, columns, make([]float32, channels*rows*columns)}
}

func (a activation) channel(n int) []float32 {
	return a.values[n*a.rows*a.columns : (n+1)*a.rows*a.columns]
}

func looking(picture []float32, rows, columns int) activation {
	return activation{3, rows, columns, picture}
}

// Scores returns one number for each class for a picture of rows × columns, whose values are
// already normalised as the network expects.
func (n *Network) Scores(picture []float32, rows, columns int) []float32 {
	features := n.features(looking(picture, rows, columns))
	weight, bias := n.Tensors["fc.weight"], n.Tensors["fc.bias"]
	scores := make([]float32, weight.Shape[0])
	for class := range scores {
		sum := float64(bias.Values[class])
		for f, v := range features {
			sum += v * float64(weight.Values[class*len(features)+f])
		}
		scores[class] = float32(sum)
	}
	return scores
}

// features returns the mean of each channel after the last block.
func (n *Network) features(x activation) []float64 {
	x = halve(n.normed("bn1", n.conv("conv1", x, 2, 3), true))
	for stage := 1; n.has(fmt.Sprintf("layer%d.0.conv1", stage)); stage++ {
		for block := 0; n.has(fmt.Sprintf("layer%d.%d.conv1", stage, block)); block++ {
			stride := 1
			if stage > 1 && block == 0 {
				stride = 2
			}
			x = n.block(fmt.Sprintf("layer%d.%d", stage, block), x, stride)
		}
	}
	means := make([]float64, x.channels)
	for c := range means {
		for _, v := range x.channel(c) {
			means[c] += float64(v)
		}
		means[c] /= float64(x.rows * x.columns)
	}
	return means
}

func (n *Network) has(layer string) bool { _, ok := n.Tensors[layer+".weight"]; return ok }

func (n *Network) block(name string, x activation, stride int) activation {
	kept := x
	if n.has(name + ".downsample.0") {
		kept = n.normed(name+".downsample.1", n.conv(name+".downsample.0", x, stride, 0), false)
	}
	if n.has(name + ".conv3") {
		x = n.normed(name+".bn1", n.conv(name+".conv1", x, 1, 0), true)
		x = n.normed(name+".bn2", n.conv(name+".conv2", x, stride, 1), true)
		x = n.normed(name+".bn3", n.conv(name+".conv3", x, 1, 0), false)
	} else {
		x = n.normed(name+".bn1", n.conv(name+".conv1", x, stride, 1), true)
		x = n.normed(name+".bn2", n.conv(name+".conv2", x, 1, 1), false)
	}
	for i, v := range kept.values {
		x.values[i] = max(x.values[i]+v, 0)
	}
	return x
}

func (n *Network) conv(name string, x activation, stride, padding int) activation {
	weight := n.Tensors[name+".weight"]
	size := weight.Shape[2]
	out := newActivation(weight.Shape[0], (x.rows+2*padding-size)/stride+1,
		(x.columns+2*padding-size)/stride+1)
	for o := range out.channels {
		to := out.channel(o)
		for c := range x.channels {
			from, kernel := x.channel(c), weight.Values[(o*x.channels+c)*size*size:]
			for k := range size * size {
				dy, dx := k/size-padding, k%size-padding
				addShifted(to, from, out, x, kernel[k], dy, dx, stride)
			}
		}
	}
	return out
}

// addShifted adds to every value of an output channel w times the input's value at the same place,
// shifted by (dy, dx).
func addShifted(to, from []float32, out, x activation, w float32, dy, dx, stride int) {
	for row := range out.rows {
		y := row*stride + dy
		if y < 0 || y >= x.rows {
			continue
		}
		for column := range out.columns {
			if at := column*stride + dx; at >= 0 && at < x.columns {
				to[row*out.columns+column] += w * from[y*x.columns+at]
			}
		}
	}
}

func (n *Network) normed(name string, x activation, rectify bool) activation {
	gain, bias := n.Tensors[name+".weight"].Values, n.Tensors[name+".bias"].Values
	mean, variance := n.Tensors[name+".running_mean"].Values, n.Tensors[name+".running_var"].Values
	for c := range x.channels {
		deviation := float32(math.Sqrt(float64(variance[c]) + 1e-5))
		for i, v := range x.channel(c) {
			v = (v-mean[c])/deviation*gain[c] + bias[c]
			if rectify {
				v = max(v, 0)
			}
			x.channel(c)[i] = v
		}
	}
	return x
}

// halve returns the largest value of each 3 × 3 square, in steps of two.
func halve(x activation) activation {
	out := newActivation(x.channels, (x.rows+1)/2, (x.columns+1)/2)
	for c := range x.channels {
		for row := range out.rows {
			for column := range out.columns {
				most := float32(math.Inf(-1))
				for y := max(2*row-1, 0); y <= min(2*row+1, x.rows-1); y++ {
					most = max(most,
						slices.Max(x.channel(c)[y*x.columns+max(2*column-1,
							0):y*x.columns+min(2*column+1, x.columns-1)+1]))
				}
				out.channel(c)[row*out.columns+column] = most
			}
		}
	}
	return out
}
