package scon

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"
)

// A Refusal says what keeps packets from the express path, and why.
type Refusal struct {
	Where string // the rule, the chain or the device
	Why   string
	Fresh bool // only for connections that have not been answered
}

func (r Refusal) String() string {
	if r.Fresh {
		return r.Where + ": " + r.Why + " (before an answer)"
	}
	return r.Where + ": " + r.Why
}

// A path is one way that packets take through the rules of IPv4; or, where it names no device, what
// they meet at the bridge and at devices.
type path struct {
	in, out string
	devices []string          // the bridge, its ports, the uplinks
	index   map[uint32]string // of the devices
	fresh   bool              // connections that have not been answered, too
}

// refusals walks all rules that packets of the paths meet. What is asked of a packet must have the
// same answer for each packet of the connection that the express path takes: they have the same
// addresses, ports, MACs, TOS and mark, are not fragments, and have no SYN, FIN or RST.
func (r *ruleset) refusals(paths []path) (all []Refusal) {
	for _, table := range r.legacy {
		all = append(all, Refusal{Where: "table " + table + " of iptables-legacy",
			Why: "nobody is told when its rules change"})
	}
	for _, p := range paths {
		w := walk{ruleset: r, path: p, done: map[chainName]end{}}
		for _, name := range r.sorted() {
			if c := r.chains[name]; c.base && p.meets(name.family, c) {
				w.chain(name, 0)
			}
		}
		for _, refusal := range w.found {
			refusal.Fresh = p.fresh
			known := func(other Refusal) bool {
				return other.Where == refusal.Where && other.Why == refusal.Why
			}
			if !slices.ContainsFunc(all, known) {
				all = append(all, refusal)
			}
		}
	}
	return all
}

func (r *ruleset) sorted() []chainName {
	var names []chainName
	for name := range r.chains {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b chainName) int {
		return strings.Compare(a.String(), b.String())
	})
	return names
}

// meets reports whether packets that are forwarded pass the chain for each packet. A chain of NAT
// is asked once for a connection.
func (p path) meets(family byte, c chain) bool {
	if c.kind == "nat" {
		return false
	}
	switch family {
	case unix.NFPROTO_NETDEV:
		return p.in == "" && (c.dev == "" || slices.Contains(p.devices, c.dev))
	case unix.NFPROTO_BRIDGE:
		return p.in == ""
	}
	return p.in != "" && (c.hook == unix.NF_INET_PRE_ROUTING || c.hook == unix.NF_INET_FORWARD ||
		c.hook == unix.NF_INET_POST_ROUTING || c.hook == ingressOfInet)
}

const ingressOfInet = 5 // NF_INET_INGRESS

type end int

const (
	goesOn end = iota
	leaves     // some packets go back to where the chain was called from
	stops      // every packet has met its verdict
)

type answer int

const (
	no answer = iota
	maybe
	yes
)

// A walk is one path through the rules.
type walk struct {
	*ruleset
	path
	found []Refusal
	done  map[chainName]end
}

const deepest = 32 // the kernel follows 16 jumps

func (w *walk) chain(name chainName, depth int) end {
	if was, known := w.done[name]; known || depth > deepest {
		return was
	}
	w.done[name] = goesOn
	left := false
	for _, rule := range w.rules[name] {
		switch w.rule(rule, depth) {
		case leaves:
			left = true
		case stops:
			if !left {
				w.done[name] = stops
			}
			return w.done[name]
		}
	}
	return goesOn
}

// rule looks at a rule from left to right, as the kernel does, until a packet of the path cannot
// match it.
func (w *walk) rule(rule rule, depth int) (result end) {
	matches, isTCP := yes, false
	for i := 0; i < len(rule.what); i++ {
		x := rule.what[i]
		if v, is := verdictOf(x); is {
			return w.verdict(v, rule, matches, depth)
		}
		isTCP = isTCP || asksForTCP(rule.what[i:])
		reply, used := w.condition(rule.what[i:])
		if isTCP && used == 0 {
			reply, used = flags(rule.what[i:])
		}
		if reply == no {
			return goesOn
		}
		if used > 0 {
			matches = min(matches, reply)
			i += used - 1
			continue
		}
		if why := w.varies(rule, i); why != "" {
			w.found = append(w.found, Refusal{Why: why,
				Where: fmt.Sprintf("%s, rule %d", rule.in, rule.handle)})
			return goesOn
		}
		if x.kind == "lookup" && x.has[unix.NFTA_LOOKUP_DREG] != nil &&
			x.number(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT {
			w.anywhere(rule.in, depth)
			result = leaves
		}
		if !neutral[x.kind] {
			matches = min(matches, maybe)
		}
	}
	return result
}

// neutral are expressions that any packet passes.
var neutral = map[string]bool{"counter": true, "meta": true, "payload": true, "ct": true,
	"immediate": true, "notrack": true}

func (w *walk) verdict(v verdict, rule rule, matches answer, depth int) end {
	switch v.code {
	case jump, goTo:
		to := rule.in
		to.name = v.chain
		result := w.chain(to, depth+1)
		if matches == yes && result == stops {
			return stops
		}
		if v.code == goTo {
			return leaves
		}
	case accept, drop:
		if matches == yes {
			return stops
		}
	case back:
		return leaves
	}
	return goesOn
}

// anywhere walks all chains that a map of verdicts may lead to.
func (w *walk) anywhere(from chainName, depth int) {
	for _, name := range w.sorted() {
		if name.family == from.family && name.table == from.table && !w.chains[name].base {
			w.chain(name, depth+1)
		}
	}
}

// condition answers the conditions that every packet of the path answers alike: devices and the
// state of its connection. used is how many expressions they were.
func (w *walk) condition(x []expression) (reply answer, used int) {
	if len(x) > 1 && x[0].kind == "meta" && x[1].kind == "cmp" {
		if reply, known := w.device(x[0].number(unix.NFTA_META_KEY), x[1]); known {
			return reply, 2
		}
	}
	if reply, known := protocol(x); known {
		return reply, 2
	}
	if x[0].kind == "ct" && x[0].number(unix.NFTA_CT_KEY) == unix.NFT_CT_STATE &&
		x[0].has[unix.NFTA_CT_SREG] == nil {
		if len(x) > 2 && x[1].kind == "bitwise" && x[2].kind == "cmp" &&
			x[2].number(unix.NFTA_CMP_OP) == unix.NFT_CMP_NEQ &&
			native32(nested(x[2].has[unix.NFTA_CMP_DATA], unix.NFTA_DATA_VALUE)) == 0 {
			mask := native32(nested(x[1].has[unix.NFTA_BITWISE_MASK], unix.NFTA_DATA_VALUE))
			return w.state(mask), 3
		}
		if len(x) > 1 && x[1].kind == "cmp" && x[1].number(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ {
			return w.state(native32(nested(x[1].has[unix.NFTA_CMP_DATA],
				unix.NFTA_DATA_VALUE))), 2
		}
	}
	if x[0].kind == "match" && x[0].text(unix.NFTA_MATCH_NAME) == "conntrack" {
		return w.xtState(x[0])
	}
	return maybe, 0
}

// protocol answers a condition on what a frame or packet has inside: all are IPv4, and TCP or UDP.
func protocol(x []expression) (reply answer, known bool) {
	if len(x) < 2 || x[1].kind != "cmp" || x[1].number(unix.NFTA_CMP_OP) != unix.NFT_CMP_EQ {
		return maybe, false
	}
	const inFrame, sizeInFrame, inPacket = 12, 2, 9
	value := nested(x[1].has[unix.NFTA_CMP_DATA], unix.NFTA_DATA_VALUE)
	bytes := func(base, offset, size uint32) bool {
		return x[0].kind == "payload" && x[0].has[unix.NFTA_PAYLOAD_SREG] == nil &&
			x[0].number(unix.NFTA_PAYLOAD_BASE) == base &&
			x[0].number(unix.NFTA_PAYLOAD_OFFSET) == offset &&
			x[0].number(unix.NFTA_PAYLOAD_LEN) == size
	}
	meta := func(key uint32) bool {
		return x[0].kind == "meta" && x[0].has[unix.NFTA_META_SREG] == nil &&
			x[0].number(unix.NFTA_META_KEY) == key
	}
	switch {
	case bytes(unix.NFT_PAYLOAD_LL_HEADER, inFrame, sizeInFrame), meta(unix.NFT_META_PROTOCOL):
		if len(value) == 2 && binary.BigEndian.Uint16(value) == unix.ETH_P_IP {
			return yes, true
		}
		return no, true
	case meta(unix.NFT_META_NFPROTO):
		if len(value) == 1 && value[0] == unix.NFPROTO_IPV4 {
			return yes, true
		}
		return no, true
	case bytes(unix.NFT_PAYLOAD_NETWORK_HEADER, inPacket, 1), meta(unix.NFT_META_L4PROTO):
		if len(value) == 1 && (value[0] == unix.IPPROTO_TCP || value[0] == unix.IPPROTO_UDP) {
			return maybe, true
		}
		return no, true
	}
	return maybe, false
}

const (
	ctEstablished = 1 << 1
	ctNew         = 1 << 3
)

// state answers whether the connection is in one of the states.
func (w *walk) state(mask uint32) answer {
	established, fresh := mask&ctEstablished != 0, mask&ctNew != 0
	switch {
	case !w.fresh && established, established && fresh:
		return yes
	case !w.fresh, !established && !fresh:
		return no
	}
	return maybe
}

// xtState answers iptables's match of that name, where it asks for nothing but the state.
func (w *walk) xtState(x expression) (answer, int) {
	const flagsAt, invertAt, maskAt, size, stateFlag = 146, 148, 150, 154, 1
	info := x.has[unix.NFTA_MATCH_INFO]
	if x.number(unix.NFTA_MATCH_REV) < 2 || len(info) < size {
		return maybe, 0
	}
	at := func(offset int) uint16 { return binaryutil.NativeEndian.Uint16(info[offset:]) }
	if at(flagsAt) != stateFlag {
		return maybe, 0
	}
	mask := uint32(at(maskAt))
	if at(invertAt)&stateFlag != 0 {
		mask = ^mask
	}
	return w.state(mask), 1
}

// device answers a condition on the device that a packet comes in or goes out by.
func (w *walk) device(key uint32, cmp expression) (reply answer, known bool) {
	data := nested(cmp.has[unix.NFTA_CMP_DATA], unix.NFTA_DATA_VALUE)
	var is func(device string) bool
	switch key {
	case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME:
		is = func(device string) bool {
			name := make([]byte, unix.IFNAMSIZ)
			copy(name, device)
			return len(data) <= len(name) && string(name[:len(data)]) == string(data)
		}
	case unix.NFT_META_IIF, unix.NFT_META_OIF:
		is = func(device string) bool { return w.index[native32(data)] == device }
	default:
		return maybe, false
	}
	op := cmp.number(unix.NFTA_CMP_OP)
	if op != unix.NFT_CMP_EQ && op != unix.NFT_CMP_NEQ {
		return maybe, false
	}
	of := []string{w.in}
	if key == unix.NFT_META_OIFNAME || key == unix.NFT_META_OIF {
		of = []string{w.out}
	}
	if of[0] == "" { // any of the path's devices: rules of bridges see ports
		of = w.devices
	}
	matching := 0
	for _, device := range of {
		if is(device) == (op == unix.NFT_CMP_EQ) {
			matching++
		}
	}
	switch matching {
	case 0:
		return no, true
	case len(of):
		return yes, true
	}
	return maybe, true
}

// varies says why the expression may answer otherwise, or do something else, for another packet of
// the same connection. What nobody here knows may.
func (w *walk) varies(rule rule, i int) string {
	x := rule.what[i]
	switch x.kind {
	case "cmp", "bitwise", "range", "immediate", "counter", "byteorder", "fib", "hash",
		"reject", "notrack", "masq", "nat", "redir", "tproxy", "flow_offload", "synproxy", "last":
		return ""
	case "meta":
		return keyVaries("meta", x.number(unix.NFTA_META_KEY), stableMeta, metaVaries)
	case "ct":
		return keyVaries("ct", x.number(unix.NFTA_CT_KEY), stableCT, ctVaries)
	case "payload":
		return payloadVaries(rule.what[i:])
	case "lookup":
		set := setName{rule.in.family, rule.in.table, x.text(unix.NFTA_LOOKUP_SET)}
		if how := w.moving[set]; how != "" {
			return "set " + set.name + " " + how
		}
		return ""
	case "objref":
		switch x.number(objectType) {
		case unix.NFT_OBJECT_COUNTER, unix.NFT_OBJECT_CT_HELPER, unix.NFT_OBJECT_CT_TIMEOUT:
			return ""
		}
		return "uses an object for each packet"
	case "match":
		if x.text(unix.NFTA_MATCH_NAME) == "tcp" {
			return tcpVaries(x.has[unix.NFTA_MATCH_INFO])
		}
		return xtVaries(x.text(unix.NFTA_MATCH_NAME), stableMatches, "match")
	case "target":
		return xtVaries(x.text(unix.NFTA_TARGET_NAME), stableTargets, "target")
	}
	if how := kindVaries[x.kind]; how != "" {
		return how
	}
	return x.kind + " is asked of each packet"
}

const objectType = 1 // NFTA_OBJREF_IMM_TYPE

var kindVaries = map[string]string{
	"limit": "limits how many packets pass", "quota": "limits how many bytes pass",
	"connlimit": "counts connections", "numgen": "draws lots, or counts packets",
	"log": "logs packets", "queue": "asks a program about packets", "dup": "doubles packets",
	"fwd": "sends packets elsewhere", "dynset": "notes packets in a set",
	"exthdr": "asks for an option of the header", "socket": "asks for a socket",
}

// tcpVaries looks at iptables's match of that name.
func tcpVaries(info []byte) string {
	const option, mask, size = 8, 9, 12
	switch {
	case len(info) < size:
		return "iptables's match tcp is of an unknown form"
	case info[option] != 0:
		return "asks for an option of TCP"
	case info[mask]&varyingFlags != 0:
		return "asks for flags of TCP that differ between packets"
	}
	return ""
}

func xtVaries(name string, stable map[string]bool, kind string) string {
	if stable[name] {
		return ""
	}
	return "iptables's " + kind + " " + name + " is asked of each packet"
}

// What is alike for all packets of a connection: see refusals. TCPMSS changes packets with SYN, and
// what DSCP and TOS change is not learned.
var (
	stableMatches = words(`addrtype comment connmark icmp iprange mac mark multiport
		physdev pkttype policy rpfilter udp`)
	stableTargets = words(`CONNMARK CT DNAT DSCP MARK MASQUERADE NETMAP NOTRACK REDIRECT REJECT SNAT
		TCPMSS TOS`)
)

func words(text string) map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.Fields(text) {
		set[word] = true
	}
	return set
}

// keyVaries looks at what an expression asks for, by its number.
func keyVaries(kind string, key uint32, stable map[uint32]bool, varies map[uint32]string) string {
	if stable[key] {
		return ""
	}
	if how := varies[key]; how != "" {
		return how
	}
	return fmt.Sprintf("asks for %s %d of each packet", kind, key)
}

// What the entry has, what follows from its devices and protocol, or what conntrack's entry has,
// which is read for each packet.
var (
	stableMeta = map[uint32]bool{unix.NFT_META_PROTOCOL: true, unix.NFT_META_MARK: true,
		unix.NFT_META_IIF: true, unix.NFT_META_OIF: true, unix.NFT_META_IIFNAME: true,
		unix.NFT_META_OIFNAME: true, unix.NFT_META_IIFTYPE: true, unix.NFT_META_OIFTYPE: true,
		unix.NFT_META_NFPROTO: true, unix.NFT_META_L4PROTO: true, unix.NFT_META_PKTTYPE: true,
		unix.NFT_META_BRI_IIFNAME: true, unix.NFT_META_BRI_OIFNAME: true,
		metaIIFKind: true, metaOIFKind: true}
	stableCT = map[uint32]bool{unix.NFT_CT_STATE: true, unix.NFT_CT_DIRECTION: true,
		unix.NFT_CT_STATUS: true, unix.NFT_CT_MARK: true, unix.NFT_CT_ZONE: true,
		unix.NFT_CT_HELPER: true, unix.NFT_CT_L3PROTOCOL: true, unix.NFT_CT_PROTOCOL: true,
		unix.NFT_CT_SRC: true, unix.NFT_CT_DST: true, unix.NFT_CT_PROTO_SRC: true,
		unix.NFT_CT_PROTO_DST: true, unix.NFT_CT_SRC_IP: true, unix.NFT_CT_DST_IP: true}
)

var metaVaries = map[uint32]string{
	unix.NFT_META_LEN:      "asks for the length of a packet",
	unix.NFT_META_NFTRACE:  "traces packets",
	unix.NFT_META_PRANDOM:  "draws lots",
	unix.NFT_META_CPU:      "asks for the CPU",
	unix.NFT_META_PRIORITY: "asks for a packet's priority",
	unix.NFT_META_CGROUP:   "asks for a cgroup",
	unix.NFT_META_SKUID:    "asks for a socket's user",
	unix.NFT_META_SKGID:    "asks for a socket's group",
	unix.NFT_META_SECMARK:  "asks for a packet's security mark",
	metaTime:               "asks for the time",
	metaDay:                "asks for the day",
	metaHour:               "asks for the hour",
}

// NFT_META_IIFKIND and following; NFT_META_TIME_NS and following.
const metaIIFKind, metaOIFKind, metaTime, metaDay, metaHour = 26, 27, 28, 29, 30

var ctVaries = map[uint32]string{
	unix.NFT_CT_PKTS:       "counts a connection's packets",
	unix.NFT_CT_BYTES:      "counts a connection's bytes",
	unix.NFT_CT_AVGPKT:     "counts a connection's bytes and packets",
	unix.NFT_CT_EXPIRATION: "asks when a connection ends",
	unix.NFT_CT_LABELS:     "asks for labels",
	unix.NFT_CT_EVENTMASK:  "sets which events are told",
}

const (
	flagsOfTCP   = 13
	varyingFlags = 0x08 | 0x40 | 0x80 // PSH, ECE, CWR: others are alike in all express packets
	ackOfTCP     = 0x10
)

// asksForTCP reports whether the expressions ask for the protocol TCP.
func asksForTCP(x []expression) bool {
	if len(x) < 2 || x[1].kind != "cmp" || x[1].number(unix.NFTA_CMP_OP) != unix.NFT_CMP_EQ {
		return false
	}
	value := nested(x[1].has[unix.NFTA_CMP_DATA], unix.NFTA_DATA_VALUE)
	if len(value) != 1 || value[0] != unix.IPPROTO_TCP {
		return false
	}
	return x[0].kind == "meta" && x[0].number(unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO ||
		x[0].kind == "payload" &&
			x[0].number(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_NETWORK_HEADER &&
			x[0].number(unix.NFTA_PAYLOAD_OFFSET) == 9 && x[0].number(unix.NFTA_PAYLOAD_LEN) == 1
}

// flags answers a condition on flags of TCP. Express packets have ACK, and no SYN, FIN, RST or URG.
func flags(x []expression) (reply answer, used int) {
	if len(x) < 2 || x[0].kind != "payload" || x[0].has[unix.NFTA_PAYLOAD_SREG] != nil ||
		x[0].number(unix.NFTA_PAYLOAD_BASE) != unix.NFT_PAYLOAD_TRANSPORT_HEADER ||
		x[0].number(unix.NFTA_PAYLOAD_OFFSET) != flagsOfTCP ||
		x[0].number(unix.NFTA_PAYLOAD_LEN) != 1 {
		return maybe, 0
	}
	mask, cmp := byte(0xff), 1
	if x[1].kind == "bitwise" && len(x) > 2 {
		of := nested(x[1].has[unix.NFTA_BITWISE_MASK], unix.NFTA_DATA_VALUE)
		xor := nested(x[1].has[unix.NFTA_BITWISE_XOR], unix.NFTA_DATA_VALUE)
		if len(of) != 1 || len(xor) != 1 || xor[0] != 0 {
			return maybe, 0
		}
		mask, cmp = of[0], 2
	}
	value := nested(x[cmp].has[unix.NFTA_CMP_DATA], unix.NFTA_DATA_VALUE)
	op := x[cmp].number(unix.NFTA_CMP_OP)
	if x[cmp].kind != "cmp" || len(value) != 1 ||
		(op != unix.NFT_CMP_EQ && op != unix.NFT_CMP_NEQ) {
		return maybe, 0
	}
	differs := (value[0]^ackOfTCP)&mask&^varyingFlags != 0
	switch {
	case differs == (op == unix.NFT_CMP_EQ) && (differs || mask&varyingFlags == 0):
		return no, cmp + 1
	case differs || mask&varyingFlags == 0:
		return yes, cmp + 1
	}
	return maybe, 0 // hangs on flags that differ
}

// payloadVaries tells what of a packet's bytes may be asked for.
func payloadVaries(x []expression) string {
	if x[0].has[unix.NFTA_PAYLOAD_SREG] != nil {
		return "changes a packet's bytes"
	}
	offset, size := x[0].number(unix.NFTA_PAYLOAD_OFFSET), x[0].number(unix.NFTA_PAYLOAD_LEN)
	within := func(from, to uint32) bool { return offset >= from && offset+size <= to }
	switch x[0].number(unix.NFTA_PAYLOAD_BASE) {
	case unix.NFT_PAYLOAD_LL_HEADER:
		if within(0, 14) {
			return ""
		}
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		if within(0, 2) || within(9, 10) || within(12, 20) {
			return ""
		}
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		if within(0, 4) {
			return ""
		}
	}
	return fmt.Sprintf("asks for bytes %d to %d of a packet's %s", offset, offset+size-1,
		[]string{"frame", "header", "transport header", "payload"}[min(3,
			x[0].number(unix.NFTA_PAYLOAD_BASE))])
}
