package oci

import (
	"bytes"
	"context"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/gzip"
)

// A machine's inflaters are measured by the process that unpacks, as it is confined. Each gets an
// equal part of measureTime and the same gzip again and again, member after member.
const (
	measureTime = 45 * time.Millisecond
	sampleSize  = 256 << 10
)

// Inflating says with what gzip is inflated.
type Inflating struct {
	Tools    string // directory that FindIgzip's files were copied to; empty: there is none
	Inflater string // by its name
}

// Measure returns how many bytes a second each inflater makes on this machine. The process that
// measures has its root in the new directory cell.
func Measure(ctx context.Context, cell, tools string) (speeds map[string]float64, err error) {
	member, err := sample()
	if err != nil {
		return nil, err
	}
	v, err := (&Image{}).order(ctx, cell, order{Measure: true, tools: tools}, nil,
		func(_ context.Context, in io.Writer) error {
			_, err := in.Write(member)
			return err
		})
	return v.Speeds, err
}

// sample is the beginning of this program, compressed: code and text, as images have.
func sample() ([]byte, error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer self.Close()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.CopyN(w, self, sampleSize); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}

// Fastest returns the name of the fastest inflater, by what was measured.
func Fastest(speeds map[string]float64) (name string) {
	for _, one := range inflaters {
		if name == "" || speeds[one.name] > speeds[name] {
			name = one.name
		}
	}
	return name
}

// measured measures inflaters for so long together.
func measured(all []inflater, member []byte, took time.Duration) map[string]float64 {
	speeds := map[string]float64{}
	for _, one := range all {
		speeds[one.name] = speedOf(one, member, took/time.Duration(len(all)))
	}
	return speeds
}

// speedOf measures one inflater, by the time that passes, or by the CPU time of its own process:
// where others want the CPUs, such a process may not have had its turn. One that is not here has no
// speed.
func speedOf(one inflater, member []byte, took time.Duration) float64 {
	begin := time.Now()
	content, err := one.open(&again{member: member})
	if err != nil {
		return 0
	}
	defer content.Close()
	b := make([]byte, sampleSize)
	bytes := 0
	for more := true; more; more = time.Since(begin) < took {
		n, err := io.ReadFull(content, b)
		if bytes += n; err != nil {
			return 0
		}
	}
	spent := time.Since(begin)
	if other, is := content.(worker); is {
		spent = other.worked()
	}
	if spent <= 0 {
		return 0
	}
	return float64(bytes) / spent.Seconds()
}

// again reads a member without end.
type again struct{ member, rest []byte }

func (a *again) Read(b []byte) (int, error) {
	if len(a.rest) == 0 {
		a.rest = a.member
	}
	n := copy(b, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}
