package scon

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// A kernel with another layout of TCP's connections is refused: the programs read three fields of
// one as one word.
func TestAnotherLayoutOfTCPIsRefused(t *testing.T) {
	for _, k := range []struct {
		side, flags, state, last btf.Bits
		refused                  bool
	}{{20, 17, 40, 43, false}, {24, 20, 47, 50, false}, {20, 16, 40, 43, true},
		{20, 17, 41, 43, true}, {20, 17, 40, 44, true}, {24, 17, 40, 43, true}} {
		byte1 := &btf.Int{Name: "u8", Size: 1}
		side := &btf.Struct{Name: "ip_ct_tcp_state", Size: uint32(k.side),
			Members: []btf.Member{{Name: "flags", Type: byte1, Offset: k.flags * 8}}}
		both := &btf.Array{Index: &btf.Int{Name: "int", Size: 4}, Type: side, Nelems: 2}
		builder, err := btf.NewBuilder([]btf.Type{&btf.Struct{Name: "ip_ct_tcp", Size: 64,
			Members: []btf.Member{{Name: "seen", Type: both},
				{Name: "state", Type: byte1, Offset: k.state * 8},
				{Name: "last_index", Type: byte1, Offset: k.last * 8}}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := builder.Marshal(nil, &btf.MarshalOptions{Order: binary.NativeEndian})
		if err != nil {
			t.Fatal(err)
		}
		types, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if err := layoutOfTCP(types); (err != nil) != k.refused {
			t.Errorf("%+v: %v", k, err)
		}
	}
}
