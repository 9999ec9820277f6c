package bridge

import (
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// The rules of a bridge are a table of the family bridge, where frames come from ports, and one of
// IPv4. Each is written as a whole, in one transaction.
type rules struct {
	*Bridge
	added map[string]int // how many rules of each chain the transaction has
}

const (
	who  = "who"       // the set of who may send at which port
	ways = "published" // the map of ports of the host
	sent = "sent"      // the chain of what comes from ports; no other table has both

	dstNAT = 1 << 5 // IPS_DST_NAT
	reply  = 1      // IP_CT_DIR_REPLY

	metaIIFKind expr.MetaKey = 26 // NFT_META_IIFKIND: the kind of the device in
	metaOIFKind expr.MetaKey = 27 // NFT_META_OIFKIND: the kind of the device out

	etherType, etherSource = 12, 6 // in the frame
	ip4Source, ip4Target   = 12, 16
	arpSender, arpSource   = 8, 14 // MAC and address
	frame                  = expr.PayloadBaseLLHeader
	packet                 = expr.PayloadBaseNetworkHeader
)

var (
	typeIP4, typeARP = []byte{0x08, 0x00}, []byte{0x08, 0x06}
	arpOfIP4         = []byte{0, 1, 0x08, 0x00, 6, 4} // of Ethernet and IPv4
	linkLocal        = netip.MustParsePrefix("169.254.0.0/16")
	// Where Azure and Alibaba keep what others keep at a link-local address.
	metadata = []netip.Addr{netip.MustParseAddr("168.63.129.16"),
		netip.MustParseAddr("100.100.100.200")}
)

// numbering is of the sets of a transaction: the library numbers those of all connections by one
// variable.
var numbering sync.Mutex

// write replaces both tables. The caller has r.writes.
func (r rules) write() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	numbering.Lock()
	defer numbering.Unlock()
	r.added = map[string]int{}
	if err := r.ports(conn); err != nil {
		return err
	}
	if err := r.routes(conn); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return err
	}
	r.written = r.added
	return nil
}

// anew begins a table that replaces the one that may be there.
func (r rules) anew(conn *nftables.Conn, family nftables.TableFamily) *nftables.Table {
	table := &nftables.Table{Name: r.Name, Family: family}
	conn.AddTable(table)
	conn.DelTable(table)
	return conn.AddTable(table)
}

// ports writes who may send what at a port.
func (r rules) ports(conn *nftables.Conn) error {
	table := r.anew(conn, nftables.TableFamilyBridge)
	set := &nftables.Set{
		Table: table, Name: who, Concatenation: true, Size: maxPorts,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr,
			nftables.TypeIPAddr),
	}
	if err := conn.AddSet(set, nil); err != nil {
		return err
	}
	var elements []nftables.SetElement
	for number := range r.Bridge.ports() {
		address, err := r.Network.Address(number)
		if err != nil {
			return err
		}
		elements = append(elements, nftables.SetElement{Key: key(r.portName(number),
			address.Addr())})
	}
	if err := fill(conn, set, elements); err != nil {
		return err
	}
	chain := conn.AddChain(&nftables.Chain{
		Name: sent, Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-300),
	})
	sender := func(mac expr.Any, address expr.Any) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG32_00}, mac, address,
			&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: who, SetID: set.ID},
		}
	}
	const mac, ip4 = unix.NFT_REG32_04, unix.NFT_REG32_06 // behind the 16 bytes of a name
	fromFrame := load(frame, etherSource, 6, mac)
	r.add(conn, chain, is(expr.CmpOpNeq, expr.MetaKeyIIFNAME, []byte(r.Name+"p")), accept)
	r.add(conn, chain, has(frame, etherType, typeIP4),
		sender(fromFrame, load(packet, ip4Source, 4, ip4)), accept)
	r.add(conn, chain, has(frame, etherType, typeARP), has(packet, 0, arpOfIP4),
		sender(fromFrame, load(packet, arpSource, 4, ip4)),
		sender(load(packet, arpSender, 6, mac), load(packet, arpSource, 4, ip4)), accept)
	if !r.shared {
		r.add(conn, chain, count, drop)
	}
	return nil
}

// fill adds elements to a set.
func fill(conn *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
	const atOnce = 256 // elements of one message, which has 64 KiB
	for some := range slices.Chunk(elements, atOnce) {
		if err := conn.SetAddElements(set, some); err != nil {
			return err
		}
	}
	return nil
}

// key returns the element of the set who that stands for a port and its address.
func key(port string, address netip.Addr) []byte {
	const mac, ip4, all = 16, 24, 28 // each field takes whole registers
	b := make([]byte, all)
	copy(b, port)
	copy(b[mac:], macOf(address))
	copy(b[ip4:], address.AsSlice())
	return b
}

// routes writes where packets of the sandboxes may go, and what may come to them.
func (r rules) routes(conn *nftables.Conn) error {
	table := r.anew(conn, nftables.TableFamilyIPv4)
	name := ifname(r.Name)
	fromBridge := is(expr.CmpOpEq, expr.MetaKeyIIFNAME, name)
	toBridge := is(expr.CmpOpEq, expr.MetaKeyOIFNAME, name)
	notFrom := is(expr.CmpOpNeq, expr.MetaKeyIIFNAME, name)
	notTo := is(expr.CmpOpNeq, expr.MetaKeyOIFNAME, name)
	filter := func(hook *nftables.ChainHook, name string) *nftables.Chain {
		return conn.AddChain(&nftables.Chain{
			Name: name, Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: hook, Priority: nftables.ChainPriorityRef(-5),
		})
	}

	in := filter(nftables.ChainHookInput, "input")
	if !r.shared { // past the bridge: a frame to a link-local MAC
		r.add(conn, in, is(expr.CmpOpEq, expr.MetaKeyIIFNAME, []byte(r.Name+"p")), count, drop)
	}
	r.add(conn, in, notFrom, is(expr.CmpOpNeq, expr.MetaKeyIIFNAME, ifname("lo")),
		has(packet, ip4Target, r.Network.Gateway.AsSlice()), count, drop)
	r.add(conn, in, notFrom, accept)
	r.add(conn, in, known, accept)
	for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		r.add(conn, in, has(packet, ip4Target, r.Network.Gateway.AsSlice()),
			is(expr.CmpOpEq, expr.MetaKeyL4PROTO, []byte{protocol}),
			has(expr.PayloadBaseTransportHeader, 2, []byte{0, dnsPort}), accept)
	}
	if !r.shared {
		r.add(conn, in, count, drop)
	}

	through := filter(nftables.ChainHookForward, "forward")
	if r.shared {
		r.add(conn, through, fromBridge, toBridge, accept)
	}
	r.add(conn, through, toBridge, known, accept)
	published, err := r.published()
	if err != nil {
		return err
	}
	if len(published) > 0 {
		r.add(conn, through, toBridge, led, accept)
	}
	r.add(conn, through, toBridge, count, drop)
	r.add(conn, through, fromBridge, invalid, count, drop)
	r.add(conn, through, fromBridge, in16(ip4Target, linkLocal), count, drop)
	for _, address := range metadata {
		r.add(conn, through, fromBridge, has(packet, ip4Target, address.AsSlice()), count, drop)
	}
	for _, uplink := range r.uplinks {
		r.add(conn, through, fromBridge, is(expr.CmpOpEq, expr.MetaKeyOIFNAME, ifname(uplink)),
			accept)
	}
	r.add(conn, through, fromBridge, is(expr.CmpOpEq, metaOIFKind, ifname("bridge")), count, drop)
	r.add(conn, through, fromBridge, accept)
	if r.forwards { // for the bridge alone, and nothing for its neighbours
		for _, uplink := range r.uplinks { // what it bridges, the kernel may show here, too
			r.add(conn, through, is(expr.CmpOpEq, expr.MetaKeyIIFNAME, ifname(uplink)),
				is(expr.CmpOpEq, expr.MetaKeyOIFNAME, ifname(uplink)), accept)
		}
		for _, end := range []struct{ kind, name expr.MetaKey }{
			{metaIIFKind, expr.MetaKeyIIFNAME}, {metaOIFKind, expr.MetaKeyOIFNAME},
		} {
			var inside []expr.Any // not by a bridge that the host's neighbours are on
			for _, uplink := range r.uplinks {
				inside = append(inside, is(expr.CmpOpNeq, end.name, ifname(uplink))...)
			}
			for _, kind := range []string{"bridge", "veth"} { // of containers of others
				r.add(conn, through, is(expr.CmpOpEq, end.kind, ifname(kind)), inside, accept)
			}
		}
		r.add(conn, through, count, drop)
	}

	out := conn.AddChain(&nftables.Chain{
		Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	mask := ipNet(r.Network.Subnet).Mask
	r.add(conn, out, notTo, []expr.Any{
		load(packet, ip4Source, 4, 1),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: r.Network.Subnet.Addr().AsSlice()},
	}, []expr.Any{&expr.Masq{}})
	if len(published) == 0 {
		return nil
	}
	return r.publish(conn, table, published)
}

// published returns the elements of the map of what is published.
func (r rules) published() (elements []nftables.SetElement, err error) {
	for number, all := range r.leases.published() {
		address, err := r.Network.Address(number)
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			protocol := byte(unix.IPPROTO_TCP)
			if p.Protocol == "udp" {
				protocol = unix.IPPROTO_UDP
			}
			elements = append(elements, nftables.SetElement{
				Key: append([]byte{protocol, 0, 0, 0}, port(p.HostPort)...),
				Val: append(address.Addr().AsSlice(), port(p.Port)...),
			})
		}
	}
	return elements, nil
}

// publish leads ports of the host to sandboxes: for who comes from outside, and for the host by
// another address than the loopback's, which no packet may have on a wire.
func (r rules) publish(conn *nftables.Conn, table *nftables.Table,
	published []nftables.SetElement) error {
	where := &nftables.Set{
		Table: table, Name: ways, IsMap: true, Concatenation: true,
		KeyType:  nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
		DataType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService),
	}
	if err := conn.AddSet(where, nil); err != nil {
		return err
	}
	if err := fill(conn, where, published); err != nil {
		return err
	}
	const key, service, to, toService = unix.NFT_REG32_00, unix.NFT_REG32_01, unix.NFT_REG32_02,
		unix.NFT_REG32_03
	lead := []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(
			unix.RTN_LOCAL)},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: key},
		load(expr.PayloadBaseTransportHeader, 2, 2, service),
		&expr.Lookup{SourceRegister: key, DestRegister: to, IsDestRegSet: true,
			SetName: where.Name, SetID: where.ID},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: to,
			RegProtoMin: toService},
	}
	chain := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return conn.AddChain(&nftables.Chain{
			Name: name, Table: table, Type: nftables.ChainTypeNAT, Hooknum: hook,
			Priority: nftables.ChainPriorityNATDest,
		})
	}
	r.add(conn, chain("prerouting", nftables.ChainHookPrerouting),
		is(expr.CmpOpNeq, expr.MetaKeyIIFNAME, ifname(r.Name)), lead)
	r.add(conn, chain("output", nftables.ChainHookOutput), []expr.Any{
		load(packet, ip4Target, 1, 1),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{127}},
	}, lead)
	return nil
}

// port returns a port as a map has it, in whole registers.
func port(n uint16) []byte { return []byte{byte(n >> 8), byte(n), 0, 0} }

// remove removes the rules in tables of others, and then both tables: a sandbox that is still there
// is let through by nobody in between.
func (r rules) remove() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	if _, err := conn.ListTables(); errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil // a kernel without nf_tables has no rules
	}
	if err := r.eachForeign(conn, func(_ *nftables.Chain, ours []*nftables.Rule) error {
		return replace(conn, ours, nil)
	}); err != nil {
		return err
	}
	for _, family := range []nftables.TableFamily{
		nftables.TableFamilyBridge, nftables.TableFamilyIPv4,
	} {
		if _, err := conn.ListTableOfFamily(r.Name, family); err == nil {
			conn.DelTable(&nftables.Table{Name: r.Name, Family: family})
		}
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// replace deletes rules and inserts others, in one transaction.
func replace(conn *nftables.Conn, old, now []*nftables.Rule) error {
	for _, rule := range old {
		if err := conn.DelRule(rule); err != nil {
			return err
		}
	}
	for _, rule := range now {
		conn.InsertRule(rule)
	}
	if len(old)+len(now) == 0 {
		return nil
	}
	return conn.Flush()
}

// whole reports whether both tables have all their rules. The caller has r.writes.
func (r rules) whole(conn *nftables.Conn) bool {
	want := maps.Clone(r.written)
	published, _ := r.published()
	if len(published) == 0 && want["output"] > 0 || // who withdrew it could not write that
		len(published) > 0 && !r.leads(conn, published) {
		return false
	}
	for _, family := range []nftables.TableFamily{
		nftables.TableFamilyBridge, nftables.TableFamilyIPv4,
	} {
		chains, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			return false
		}
		for _, chain := range chains {
			if chain.Table.Name != r.Name {
				continue
			}
			found, err := conn.GetRules(chain.Table, chain)
			if err != nil || len(found) != want[chain.Name] {
				return false
			}
			delete(want, chain.Name)
		}
	}
	return len(want) == 0
}

// leads reports whether the kernel's map has what is published, and nothing else.
func (r rules) leads(conn *nftables.Conn, published []nftables.SetElement) bool {
	found, err := conn.GetSetElements(&nftables.Set{Name: ways,
		Table: &nftables.Table{Name: r.Name, Family: nftables.TableFamilyIPv4}})
	if err != nil {
		return false
	}
	lines := func(elements []nftables.SetElement) (all []string) {
		for _, e := range elements {
			all = append(all, string(e.Key)+string(e.Val))
		}
		slices.Sort(all)
		return all
	}
	return slices.Equal(lines(found), lines(published))
}

// pass has the chains of others that filter what is forwarded, or comes in, let through what this
// bridge's tables have let through.
func (r rules) pass(conn *nftables.Conn) error {
	return r.eachForeign(conn, func(chain *nftables.Chain, ours []*nftables.Rule) error {
		want := [][]expr.Any{is(expr.CmpOpEq, expr.MetaKeyIIFNAME, ifname(r.Name))}
		if *chain.Hooknum == *nftables.ChainHookForward {
			want = append(want, is(expr.CmpOpEq, expr.MetaKeyOIFNAME, ifname(r.Name)))
		}
		if len(ours) == len(want) {
			return nil
		}
		var now []*nftables.Rule
		for _, match := range want {
			now = append(now, &nftables.Rule{
				Table: chain.Table, Chain: chain, UserData: r.mark(),
				Exprs: append(append(match, &expr.Counter{}), accept...),
			})
		}
		err := replace(conn, ours, now)
		if errors.Is(err, unix.EPERM) { // as firewalld's, whose table is its own
			r.refused(chain)
			return nil
		}
		return err
	})
}

// refused says, once, that a chain takes no rule.
func (r rules) refused(chain *nftables.Chain) {
	name := chain.Table.Name + " " + chain.Name
	if !r.closed[name] {
		r.closed[name] = true
		r.Log.Warn("a firewall lets nobody add a rule; if it drops what sandboxes send, have it"+
			" accept what the bridge forwards", "bridge", r.Name, "chain", name)
	}
}

// mark is the comment by which this bridge's rules are known among those of others.
func (r rules) mark() []byte {
	return userdata.AppendString(nil, userdata.TypeComment, "fastiov bridge "+r.Name)
}

// eachForeign calls visit with each chain of others that filters what is forwarded or comes in, and
// with the rules in it that are this bridge's.
func (r rules) eachForeign(conn *nftables.Conn,
	visit func(chain *nftables.Chain, ours []*nftables.Rule) error) error {
	chains, err := conn.ListChains()
	if err != nil {
		return err
	}
	bridges := map[string]bool{r.Name: true} // of other nodes of this host, too
	for _, chain := range chains {
		if chain.Table.Family == nftables.TableFamilyBridge && chain.Name == sent {
			if _, err := conn.GetSetByName(chain.Table, who); err == nil {
				bridges[chain.Table.Name] = true
			}
		}
	}
	for _, chain := range chains {
		family := chain.Table.Family
		if chain.Hooknum == nil || chain.Type != nftables.ChainTypeFilter ||
			family != nftables.TableFamilyIPv4 && family != nftables.TableFamilyINet ||
			*chain.Hooknum != *nftables.ChainHookForward &&
				*chain.Hooknum != *nftables.ChainHookInput || bridges[chain.Table.Name] {
			continue
		}
		all, err := conn.GetRules(chain.Table, chain)
		if err != nil {
			return err
		}
		var ours []*nftables.Rule
		for _, rule := range all {
			if string(rule.UserData) == string(r.mark()) {
				ours = append(ours, rule)
			}
		}
		if err := visit(chain, ours); err != nil {
			return err
		}
	}
	return nil
}

// The parts of rules.

var (
	accept = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	drop   = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	count  = []expr.Any{&expr.Counter{}}
	// led matches packets that a publication has led on, or another translation of the host's.
	led = ctHas(expr.CtKeySTATUS, dstNAT)
	// invalid matches packets that are of no connection for conntrack, as a stray FIN. NAT leaves
	// them alone: they would leave with the sandbox's address.
	invalid = ctHas(expr.CtKeySTATE, expr.CtStateBitINVALID)
	// known is of a connection that was let through before, and of the way back: one that began
	// while the rules were away goes on in no direction that they forbid.
	known = slices.Concat([]expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeyDIRECTION},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{reply}},
	}, ctHas(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED))
)

// add adds a rule to a chain.
func (r rules) add(conn *nftables.Conn, chain *nftables.Chain, parts ...[]expr.Any) {
	rule := &nftables.Rule{Table: chain.Table, Chain: chain}
	for _, part := range parts {
		rule.Exprs = append(rule.Exprs, part...)
	}
	conn.AddRule(rule)
	r.added[chain.Name]++
}

// ctHas matches packets whose connection has one of the bits in that word of conntrack's.
func ctHas(word expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: word},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Xor: make([]byte, 4),
			Mask: binaryutil.NativeEndian.PutUint32(bits)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func is(op expr.CmpOp, key expr.MetaKey, value []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: op, Register: 1, Data: value}}
}

func has(base expr.PayloadBase, offset uint32, value []byte) []expr.Any {
	return []expr.Any{load(base, offset, uint32(len(value)), 1),
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}

// in16 matches an address of a network whose prefix has 16 bits.
func in16(offset uint32, network netip.Prefix) []expr.Any {
	return has(packet, offset, network.Addr().AsSlice()[:2])
}

func load(base expr.PayloadBase, offset, length, register uint32) expr.Any {
	return &expr.Payload{Base: base, Offset: offset, Len: length, DestRegister: register}
}

// ifname is a name as the kernel compares it, whole.
func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
