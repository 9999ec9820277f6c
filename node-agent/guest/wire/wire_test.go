package wire

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	var pipe bytes.Buffer
	sent := []Up{
		{Hello: &Hello{Boot: 12, Real: 56, Ready: true}},
		{Event: &Event{Stage: "agent", Step: "root", Begin: 1, End: 2}},
		{Log: &Log{Stream: "stdout", Text: "one \"line\"\twith\x00bytes"}},
		{Pong: &Pong{ID: 7, Boot: 8}},
		{Ready: &Ready{}},
		{Exit: &Exit{Reason: "why"}},
	}
	for _, up := range sent {
		if err := Write(&pipe, up); err != nil {
			t.Fatal(err)
		}
	}
	messages := NewReader(&pipe)
	for _, want := range sent {
		var got Up
		if err := messages.Next(&got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
	if err := messages.Next(&Up{}); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

// A guest and an agent of different versions agree on what its NIC is called.
func TestTheKeyOfANICStays(t *testing.T) {
	const sent = `{"config":{"vf":{"mac":"m","address":"10.0.0.2/24"},"command":["a"]}}`
	var down Down
	if err := NewReader(strings.NewReader(sent + "\n")).Next(&down); err != nil {
		t.Fatal(err)
	}
	want := NIC{MAC: "m", Address: netip.MustParsePrefix("10.0.0.2/24")}
	if down.Config.NIC == nil || *down.Config.NIC != want {
		t.Fatalf("understood as %+v", down.Config.NIC)
	}
	var pipe bytes.Buffer
	err := Write(&pipe, down)
	if err != nil || !strings.Contains(pipe.String(), `"vf":{"mac":"m",`) {
		t.Errorf("written as %s, %v", &pipe, err)
	}
}

func TestConfigRoundTrip(t *testing.T) {
	for _, config := range []Config{
		{Program: Program{Command: []string{"true"}}},
		{
			Time: 1, Entropy: []byte{1, 2}, Hostname: "h",
			Program: Program{Command: []string{"a", "b"}, Env: map[string]string{"A": "=\n"},
				Dir: "/d", UID: 3, GID: 4},
			NIC: &NIC{
				MAC: "02:00:00:00:00:01", Address: netip.MustParsePrefix("10.0.0.2/24"),
				Gateway: netip.MustParseAddr("10.0.0.1"), DNS: netip.MustParseAddr("fd00::1"),
			},
		},
		{
			Program: Program{Command: []string{"x"}},
			NIC:     &NIC{MAC: "m", Address: netip.MustParsePrefix("10.0.0.2/24")},
		},
	} {
		var pipe bytes.Buffer
		if err := Write(&pipe, Down{Config: &config}); err != nil {
			t.Fatal(err)
		}
		var got Down
		if err := NewReader(&pipe).Next(&got); err != nil ||
			!reflect.DeepEqual(*got.Config, config) {
			t.Errorf("got %+v, %v; want %+v", got.Config, err, config)
		}
	}
}

// The worst log line, each of its bytes written by JSON as six, must fit a message.
func TestLongestLogFits(t *testing.T) {
	if err := Write(io.Discard,
		Up{Log: &Log{Stream: "stdout", Text: strings.Repeat("\x00", MaxText)}}); err != nil {
		t.Error(err)
	}
}

func TestBounds(t *testing.T) {
	if err := Write(io.Discard, Up{Exit: &Exit{Reason: strings.Repeat("x", MaxLine)}}); !errors.Is(
		err, ErrTooLong) {
		t.Errorf("writing too much: %v", err)
	}
	endless := &counting{Reader: neverNewline{}}
	if err := NewReader(endless).Next(&Up{}); !errors.Is(err, ErrTooLong) {
		t.Errorf("reading a line without end: %v", err)
	}
	if endless.n > 2*MaxLine {
		t.Errorf("%d bytes were read of a line without end", endless.n)
	}
	if err := NewReader(strings.NewReader(`{"ready":{}}`)).Next(&Up{}); !errors.Is(err,
		io.ErrUnexpectedEOF) {
		t.Errorf("a torn last line: %v", err)
	}
}

type neverNewline struct{}

func (neverNewline) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

type counting struct {
	io.Reader
	n int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"hello":{"boot":1,"real":3}}` + "\n" + `{"log":{"stream":"stdout","text":"x"}}` +
		"\n"))
	f.Add([]byte("\n{}\n[]\nnull\n"))
	f.Add(bytes.Repeat([]byte{'['}, 20000))
	f.Fuzz(func(t *testing.T, data []byte) {
		messages := NewReader(bytes.NewReader(data))
		for range len(data) + 1 {
			var up Up
			if messages.Next(&up) != nil {
				return
			}
			if err := Write(io.Discard, up); err != nil && !errors.Is(err, ErrTooLong) {
				t.Fatalf("%+v was read and cannot be written: %v", up, err)
			}
		}
		t.Fatal("more messages than bytes")
	})
}
