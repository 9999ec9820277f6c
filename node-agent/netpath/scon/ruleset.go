package scon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A ruleset holds what the kernel has of nftables, as iptables of our days writes it, too.
type ruleset struct {
	chains map[chainName]chain
	rules  map[chainName][]rule
	moving map[setName]string // sets that change by themselves, and how
	legacy []string           // tables of the older kind, whose changes nobody is told of

	generation uint64 // that it is of, or 0
	read       time.Time
}

type chainName struct {
	family      byte
	table, name string
}

type setName struct {
	family      byte
	table, name string
}

type chain struct {
	base bool
	hook uint32
	kind string
	dev  string
}

type rule struct {
	in     chainName
	handle uint64
	what   []expression
}

// An expression is one step of a rule: its kind, and its attributes by their number.
type expression struct {
	kind string
	has  map[uint16][]byte
}

func (x expression) number(attribute uint16) uint32 {
	if b := x.has[attribute]; len(b) >= 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (x expression) text(attribute uint16) string {
	return strings.TrimRight(string(x.has[attribute]), "\x00")
}

func (c chainName) String() string {
	family := map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip",
		unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev"}[c.family]
	return family + " " + c.table + " " + c.name
}

const legacyTables = "/proc/thread-self/net/ip_tables_names"

// readRuleset reads what is in force for IPv4 and for bridges. It understands only what the kernel
// says itself: an expression that nobody here knows is kept by its name.
func readRuleset() (*ruleset, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	r := &ruleset{chains: map[chainName]chain{}, rules: map[chainName][]rule{},
		moving: map[setName]string{}}
	for _, ask := range []struct {
		message int
		take    func(family byte, d *netlink.AttributeDecoder) error
	}{
		{unix.NFT_MSG_GETCHAIN, r.chain}, {unix.NFT_MSG_GETSET, r.set},
		{unix.NFT_MSG_GETRULE, r.rule},
	} {
		if err := dump(conn, ask.message, ask.take); err != nil {
			return nil, err
		}
	}
	return r, r.readLegacy()
}

// readLegacy reads which tables of the older kind there are.
func (r *ruleset) readLegacy() error {
	names, err := os.ReadFile(legacyTables)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	r.legacy = strings.Fields(string(names))
	return nil
}

// stale is the time after which rules are read anew: not all that changes them makes a generation.
const stale = 30 * time.Second

// at returns the rules of a generation: what was read already, if it is of that and not stale.
func (r *ruleset) at(generation uint64) (*ruleset, error) {
	if r != nil && generation > 0 && r.generation == generation &&
		time.Since(r.read) < stale {
		return r, r.readLegacy()
	}
	r, err := readRuleset()
	if err == nil {
		r.generation, r.read = generation, time.Now()
	}
	return r, err
}

func dump(conn *netlink.Conn, message int,
	take func(family byte, d *netlink.AttributeDecoder) error) error {
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | message),
			Flags: netlink.Request | netlink.Dump,
		},
		Data: []byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return fmt.Errorf("nftables' rules: %w", err)
	}
	for _, reply := range replies {
		if len(reply.Data) < 4 {
			continue
		}
		family := reply.Data[0]
		switch family {
		case unix.NFPROTO_IPV4, unix.NFPROTO_INET, unix.NFPROTO_BRIDGE, unix.NFPROTO_NETDEV:
		default:
			continue
		}
		d, err := netlink.NewAttributeDecoder(reply.Data[4:])
		if err != nil {
			return err
		}
		d.ByteOrder = binary.BigEndian
		if err := take(family, d); err != nil {
			return err
		}
	}
	return nil
}

func (r *ruleset) chain(family byte, d *netlink.AttributeDecoder) error {
	name, c := chainName{family: family}, chain{}
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_CHAIN_TABLE:
			name.table = d.String()
		case unix.NFTA_CHAIN_NAME:
			name.name = d.String()
		case unix.NFTA_CHAIN_TYPE:
			c.kind = d.String()
		case unix.NFTA_CHAIN_HOOK:
			c.base = true
			d.Nested(func(hook *netlink.AttributeDecoder) error {
				hook.ByteOrder = binary.BigEndian
				for hook.Next() {
					switch hook.Type() {
					case unix.NFTA_HOOK_HOOKNUM:
						c.hook = hook.Uint32()
					case unix.NFTA_HOOK_DEV:
						c.dev = hook.String()
					}
				}
				return nil
			})
		}
	}
	r.chains[name] = c
	return d.Err()
}

func (r *ruleset) set(family byte, d *netlink.AttributeDecoder) error {
	const timeout, evaluated = 0x10, 0x20            // NFT_SET_TIMEOUT, NFT_SET_EVAL
	const setExpression, setExpressions = 0x11, 0x12 // NFTA_SET_EXPR, NFTA_SET_EXPRESSIONS
	name, flags, each := setName{family: family}, uint32(0), []string(nil)
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_SET_TABLE:
			name.table = d.String()
		case unix.NFTA_SET_NAME:
			name.name = d.String()
		case unix.NFTA_SET_FLAGS:
			flags = d.Uint32()
		case setExpression:
			d.Nested(func(e *netlink.AttributeDecoder) error {
				each = append(each, decode(e).kind)
				return nil
			})
		case setExpressions:
			d.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(func(e *netlink.AttributeDecoder) error {
						each = append(each, decode(e).kind)
						return nil
					})
				}
				return nil
			})
		}
	}
	switch {
	case flags&timeout != 0:
		r.moving[name] = "has elements that end"
	case flags&evaluated != 0:
		r.moving[name] = "is filled by packets"
	case slices.ContainsFunc(each, func(kind string) bool { return kind != "counter" }):
		r.moving[name] = "does more for each packet than to look it up"
	}
	return d.Err()
}

func (r *ruleset) rule(family byte, d *netlink.AttributeDecoder) error {
	one := rule{in: chainName{family: family}}
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_RULE_TABLE:
			one.in.table = d.String()
		case unix.NFTA_RULE_CHAIN:
			one.in.name = d.String()
		case unix.NFTA_RULE_HANDLE:
			one.handle = d.Uint64()
		case unix.NFTA_RULE_EXPRESSIONS:
			d.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(func(e *netlink.AttributeDecoder) error {
						one.what = append(one.what, decode(e))
						return nil
					})
				}
				return nil
			})
		}
	}
	r.rules[one.in] = append(r.rules[one.in], one)
	return d.Err()
}

func decode(d *netlink.AttributeDecoder) (x expression) {
	x.has = map[uint16][]byte{}
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_EXPR_NAME:
			x.kind = d.String()
		case unix.NFTA_EXPR_DATA:
			d.Nested(func(data *netlink.AttributeDecoder) error {
				for data.Next() {
					x.has[data.Type()] = data.Bytes()
				}
				return nil
			})
		}
	}
	return x
}

// nested returns an attribute of an attribute's bytes.
func nested(b []byte, path ...uint16) []byte {
	for _, want := range path {
		d, err := netlink.NewAttributeDecoder(b)
		if err != nil {
			return nil
		}
		b = nil
		for d.Next() {
			if d.Type() == want {
				b = d.Bytes()
			}
		}
	}
	return b
}

// A verdict of a rule, if it has one.
type verdict struct {
	code  int32
	chain string
}

const (
	accept = 1
	drop   = 0
	jump   = -3
	goTo   = -4
	back   = -5
)

func verdictOf(x expression) (v verdict, is bool) {
	data := nested(x.has[unix.NFTA_IMMEDIATE_DATA], unix.NFTA_DATA_VERDICT)
	code := nested(data, unix.NFTA_VERDICT_CODE)
	if x.kind != "immediate" || len(code) < 4 {
		return verdict{}, false
	}
	v.code = int32(binary.BigEndian.Uint32(code))
	v.chain = strings.TrimRight(string(nested(data, unix.NFTA_VERDICT_CHAIN)), "\x00")
	return v, true
}

func native32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binaryutil.NativeEndian.Uint32(b)
}
