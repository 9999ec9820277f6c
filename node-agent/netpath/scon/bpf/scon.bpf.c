// SPDX-License-Identifier: GPL-2.0
/*
 * SCON's express forward: what the kernel did to one packet of a connection, it does to the next
 * ones at once.
 *
 *	arrive  (tcx ingress of ports and NICs)  express: header rewritten, sent on by redirect
 *	   │ regular: noted in the slot
 *	bridge, netfilter, routing               on one CPU, with the same sk_buff
 *	   │
 *	compose (tcx egress of ports and NICs)   the slot's packet: its difference is a Conentry
 *
 * A Conentry is valid by what the kernel itself holds, looked at for each packet: the generation
 * of its rules, the generation of its routes, and the conntrack entry, whole. It is a lease of one
 * second that only a packet on the regular path renews; so conntrack, neighbours and the bridge's
 * table stay true, and what no generation tells is seen within that second.
 *
 * The generations are read before the kernel decides, so an entry never has a later one than the
 * rules and routes that made it.
 */
#include "tables.h"

char LICENSE[] SEC("license") = "GPL";

/* The paper's design, for comparison: an entry holds until it is idle, whatever has changed. */
const volatile bool by_age = false;

struct ethernet {
	__u8 macs[12]; /* to, from */
	__be16 type;
} __attribute__((packed));

struct ipv4 {
	__u8 version_and_length, tos;
	__be16 length, id, fragment;
	__u8 ttl, protocol;
	__u16 check;
	__be32 from, to;
} __attribute__((packed));

struct headers {
	struct ethernet ethernet;
	struct ipv4 ip;
	__be16 from_port, to_port;
} __attribute__((packed));

_Static_assert(sizeof(struct headers) == HEADERS, "headers have no gaps");

/* Where nf_tables has base_seq for itself: its number among those that have a part in each network
 * namespace, by address, and the place in that part. */
const volatile __u64 nf_tables_id = 0;
const volatile __u32 base_seq_at = 0;

/* 0 says that nf_tables is gone. */
static __always_inline __u64 rules_of(struct net *net)
{
	__u32 base_seq;

	if (bpf_core_field_exists(net->nft.base_seq)) {
		base_seq = net->nft.base_seq;
	} else {
		__u64 parts = (__u64)net->gen;
		__u64 mine = POINTER_AT(parts + 8ull * WORD_AT(nf_tables_id));

		base_seq = WORD_AT(mine + base_seq_at);
	}
	/* A commit raises base_seq first, and turns the cursor when the new rules are in force. */
	return base_seq ? (__u64)base_seq << 1 | (net->nft.gencursor & 1) : 0;
}

static __always_inline __u64 routes_of(struct net *net)
{
	return (__u32)net->ipv4.rt_genid.counter;
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline bool same_macs(const __u8 *a, const __u8 *b)
{
	return *(const __u32 *)a == *(const __u32 *)b &&
	       *(const __u32 *)(a + 4) == *(const __u32 *)(b + 4) &&
	       *(const __u32 *)(a + 8) == *(const __u32 *)(b + 8);
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return *(const __u32 *)a == *(const __u32 *)b &&
	       *(const __u16 *)(a + 4) == *(const __u16 *)(b + 4);
}

static __always_inline void copy_macs(__u8 *to, const __u8 *from)
{
	*(__u32 *)to = *(const __u32 *)from;
	*(__u32 *)(to + 4) = *(const __u32 *)(from + 4);
	*(__u32 *)(to + 8) = *(const __u32 *)(from + 8);
}

static __always_inline int regular(__u32 why)
{
	__u64 *count = bpf_map_lookup_elem(&reasons, &why);

	if (count)
		++*count;
	return NEXT;
}

static __always_inline bool leads(struct nf_conntrack_tuple *t, __u32 protocol, __be32 from,
				  __be16 from_port, __be32 to, __be16 to_port)
{
	return t->src.l3num == INET && t->dst.protonum == protocol && t->src.u3.ip == from &&
	       t->dst.u3.ip == to && t->src.u.all == from_port && t->dst.u.all == to_port;
}

/* Whether the connection translates the flow into what the entry has, in that direction. */
static __always_inline bool translates(struct nf_conn *ct, const struct flow *f,
				       const struct conentry *e)
{
	if (e->reply)
		return leads(&ct->tuplehash[1].tuple, f->protocol, f->from, f->from_port, f->to,
			     f->to_port) &&
		       leads(&ct->tuplehash[0].tuple, f->protocol, e->to, e->to_port, e->from,
			     e->from_port);
	return leads(&ct->tuplehash[0].tuple, f->protocol, f->from, f->from_port, f->to,
		     f->to_port) &&
	       leads(&ct->tuplehash[1].tuple, f->protocol, e->to, e->to_port, e->from,
		     e->from_port);
}

/* Whether the conntrack entry is there, and is the one that it was: its memory may be another's. */
static __always_inline bool lives(const struct flow *f, const struct conentry *e, struct net *net)
{
	struct nf_conn *ct = AT(nf_conn, e->conntrack);

	if (ct->status != e->status || ct->mark != e->ct_mark || ct->zone.id != e->zone)
		return false;
	if ((__u64)ct->ct_net.net != (__u64)net)
		return false;
	if ((__s32)(ct->timeout - (__u32)bpf_jiffies64()) <= 0)
		return false;
	if (f->protocol == TCP && ct->proto.tcp.state != CT_TCP_ESTABLISHED)
		return false;
	return translates(ct, f, e);
}

static __always_inline bool tolerates_gaps(struct net *net)
{
	return net->ct.nf_ct_proto.tcp.tcp_be_liberal &&
	       net->ct.nf_ct_proto.tcp.tcp_ignore_invalid_rst;
}

/* Why the entry does not hold now; EXPRESS where it does. */
static __always_inline __u32 holds(const struct flow *f, const struct conentry *e,
				   struct net *net, __u64 rules, __u64 routes, __u64 now)
{
	struct permit *permit;
	__u32 zero = 0;

	if (by_age)
		return EXPRESS;
	if (now >= e->until)
		return SAMPLE;
	permit = bpf_map_lookup_elem(&permits, &zero);
	if (!permit || !rules || e->rules != rules || permit->established != rules ||
	    (e->fresh && permit->fresh != rules))
		return RULES;
	if (e->routes != routes)
		return ROUTES;
	if (f->protocol == TCP && !tolerates_gaps(net))
		return WINDOW;
	return lives(f, e, net) ? EXPRESS : CONNECTION;
}

static __always_inline void drop_entry(const struct flow *f, __u32 owner)
{
	struct contable *t;

	if (bpf_map_delete_elem(&conentries, f))
		return;
	t = bpf_map_lookup_elem(&contables, &owner);
	if (t)
		__sync_fetch_and_add(&t->entries, -1);
}

/* express sends the packet on as the entry has it, which is valid until that time. */
static __always_inline int express(struct __sk_buff *skb, struct headers *h, const struct flow *f,
				   struct conentry *e, __u64 until, __u64 now)
{
	struct bpf_redir_neigh hop = { .nh_family = INET, .ipv4_nh = e->next_hop };
	__u32 check = ETHERNET + IPV4 + (f->protocol == TCP ? 16 : 6);
	__u64 zero_is_none = f->protocol == UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 why = EXPRESS, device = e->device, mark = e->mark, priority = e->priority;
	__u32 addresses = e->addresses, ports = e->ports;
	bool neighbour = e->neighbour;
	__u64 *count;

	/* The TTL is the first byte of its word. */
	h->ip.check = ~fold((__u64)(__u16)~h->ip.check + (__u64)addresses +
			    (__u16)~bpf_htons(0x0100));
	h->ip.ttl--;
	h->ip.from = e->from;
	h->ip.to = e->to;
	h->from_port = e->from_port;
	h->to_port = e->to_port;
	if (!neighbour)
		copy_macs(h->ethernet.macs, e->new_macs);
	/* The memory of an entry that was replaced or removed meanwhile may be another flow's. */
	if (bpf_map_lookup_elem(&conentries, f) != e || e->until != until)
		return regular(NO_ENTRY);
	if (addresses &&
	    bpf_l4_csum_replace(skb, check, 0, addresses, BPF_F_PSEUDO_HDR | zero_is_none))
		return DROP;
	if (ports && bpf_l4_csum_replace(skb, check, 0, ports, zero_is_none))
		return DROP;
	if (bpf_skb_store_bytes(skb, 0, h, HEADERS, 0))
		return DROP;
	skb->mark = mark;
	skb->priority = priority;

	e->used = now;
	e->packets++;
	e->bytes += bpf_ntohs(h->ip.length);
	count = bpf_map_lookup_elem(&reasons, &why);
	if (count)
		++*count;
	if (neighbour)
		return bpf_redirect_neigh(device, &hop, sizeof(hop), 0);
	return bpf_redirect(device, 0);
}

/* arrive sends a packet on, or has it take the regular path. */
SEC("tc")
int arrive(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	struct net *net = kernel->dev->nd_net.net;
	__u32 length, transport, zero = 0;
	struct conentry *e;
	struct flow f = {};
	struct headers h;
	struct slot *slot;
	__u64 now, rules, routes, until;

	if (skb->protocol != bpf_htons(0x0800) || skb->vlan_present ||
	    data + HEADERS + 4 > end)
		return regular(OTHER);
	__builtin_memcpy(&h, data, sizeof(h));
	if (h.ethernet.type != bpf_htons(0x0800) || h.ip.version_and_length != 0x45 ||
	    h.ip.fragment & bpf_htons(FRAGMENT))
		return regular(OTHER);
	length = bpf_ntohs(h.ip.length);
	if (h.ip.protocol == TCP) {
		__u8 *tcp = data + ETHERNET + IPV4;

		if (data + ETHERNET + IPV4 + 20 > end)
			return regular(OTHER);
		if ((tcp[13] & ~TCP_STEADY) || !(tcp[13] & TCP_ACK))
			return regular(CONTROL);
		transport = tcp[12] >> 4 << 2;
		if (transport < 20 || length < IPV4 + transport)
			return regular(MALFORMED);
	} else if (h.ip.protocol == UDP) {
		__be16 *udp = data + ETHERNET + IPV4;

		transport = 8;
		if (bpf_ntohs(udp[2]) != length - IPV4)
			return regular(MALFORMED);
	} else {
		return regular(OTHER);
	}
	if (h.ip.ttl <= 1)
		return regular(LAST_HOP);

	f.from = h.ip.from;
	f.to = h.ip.to;
	f.from_port = h.from_port;
	f.to_port = h.to_port;
	f.device = skb->ifindex;
	f.protocol = h.ip.protocol;
	rules = rules_of(net);
	routes = routes_of(net);

	__u32 why = NO_ENTRY;

	e = bpf_map_lookup_elem(&conentries, &f);
	if (!e)
		goto note;
	until = e->until;
	if (!same_macs(e->macs, h.ethernet.macs) || e->tos != h.ip.tos ||
	    e->mark_before != skb->mark) {
		why = FRAME;
		goto note;
	}
	now = bpf_ktime_get_coarse_ns();
	why = holds(&f, e, net, rules, routes, now);
	if (why != EXPRESS) {
		if (why == CONNECTION)
			drop_entry(&f, e->owner);
		goto note;
	}
	if ((skb->gso_size ? skb->gso_size + IPV4 + transport : length) > e->mtu) {
		why = SIZE;
		goto note;
	}

	/* What the kernel checks of a header when it comes in. */
	__u64 sum = 0;
	__u16 *words = (__u16 *)&h.ip;

#pragma unroll
	for (int i = 0; i < IPV4 / 2; i++)
		sum += words[i];
	if (fold(sum) != 0xffff || length + ETHERNET > skb->len ||
	    (skb->gso_size && length + ETHERNET != skb->len))
		return regular(MALFORMED);
	/* A short frame of a NIC has bytes behind its packet, which a router leaves out. */
	if (length + ETHERNET < skb->len && bpf_skb_change_tail(skb, length + ETHERNET, 0))
		return regular(MALFORMED);
	return express(skb, &h, &f, e, until, now);

note:
	slot = bpf_map_lookup_elem(&slots, &zero);
	if (slot) {
		slot->skb = (__u64)kernel;
		slot->flow = f;
		slot->rules = rules;
		slot->routes = routes;
		slot->mark = skb->mark;
		slot->length = h.ip.length;
		slot->id = h.ip.id;
		slot->tos = h.ip.tos;
		slot->ttl = h.ip.ttl;
		copy_macs(slot->macs, h.ethernet.macs);
	}
	return regular(why);
}

/* How large a packet may be on that route and device; 0 where the express path cannot follow it:
 * where an MTU is locked, or forwarding heeds one that ICMP has told. */
static __always_inline __u32 room(struct rtable *route, struct net_device *device, struct net *net)
{
	struct dst_metrics *metrics = AT(dst_metrics, route->dst._metrics & ~3ul);
	__u32 mtu = device->mtu, by_route = route->dst.dev->mtu, metric = metrics->metrics[1];

	if (route->rt_type != UNICAST || route->dst.xfrm || route->dst.lwtstate ||
	    (route->rt_gw_family && route->rt_gw_family != INET))
		return 0;
	if (BPF_CORE_READ_BITFIELD(route, rt_mtu_locked) || metrics->metrics[0] & MTU_LOCKED ||
	    (net->ipv4.sysctl_ip_fwd_use_pmtu && BPF_CORE_READ_BITFIELD(route, rt_pmtu)))
		return 0;
	if (by_route < mtu)
		mtu = by_route;
	if (metric && metric < mtu)
		mtu = metric;
	return mtu < 0xffff ? mtu : 0xffff;
}

static __always_inline __u32 difference(__be32 before, __be32 after)
{
	__u64 sum = (__u64)(__u32)~before + after;

	return (sum & 0xffffffff) + (sum >> 32);
}

static __always_inline __u32 plus(__u32 a, __u32 b)
{
	__u64 sum = (__u64)a + b;

	return (sum & 0xffffffff) + (sum >> 32);
}

/* compose learns from a packet that arrive noted and that now leaves, by the same sk_buff. */
SEC("tc")
int compose(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	__u32 zero = 0, device = skb->ifindex, owner;
	struct contable *in, *out, *mine;
	struct conentry e = {};
	struct net *net = kernel->dev->nd_net.net;
	struct permit *permit;
	struct headers *h = data;
	struct rtable *route;
	struct slot *slot;
	struct nf_conn *ct;
	__u64 info, now;
	__be32 gateway;
	struct flow f, any;

	slot = bpf_map_lookup_elem(&slots, &zero);
	if (!slot || slot->skb != (__u64)kernel)
		return NEXT;
	slot->skb = 0;
	f = slot->flow;

	/* The rules were read for packets that come by the bridge, or by the NIC itself: not
	 * by a VLAN on it, nor by another bridge. And a host's own packet, which came by none,
	 * may have the memory of one that was dropped. */
	in = bpf_map_lookup_elem(&contables, &f.device);
	if (skb->ingress_ifindex != (in ? in->bridge : f.device))
		return NEXT;
	if (skb->protocol != bpf_htons(0x0800) || skb->vlan_present || data + sizeof(*h) > end)
		return NEXT;
	if (h->ethernet.type != bpf_htons(0x0800) || h->ip.version_and_length != 0x45 ||
	    h->ip.fragment & bpf_htons(FRAGMENT) || h->ip.protocol != f.protocol ||
	    h->ip.length != slot->length || h->ip.id != slot->id || h->ip.tos != slot->tos ||
	    h->ip.ttl != slot->ttl - 1)
		return NEXT;

	out = bpf_map_lookup_elem(&contables, &device);
	permit = bpf_map_lookup_elem(&permits, &zero);
	if (!permit || (!by_age && (!slot->rules || permit->established != slot->rules)))
		return NEXT;
	if (in) {
		owner = f.device;
		mine = in;
	} else if (out) {
		owner = device;
		mine = out;
	} else {
		return NEXT;
	}

	info = kernel->_nfct & CT_INFO;
	e.conntrack = kernel->_nfct & CT_POINTER;
	if (!e.conntrack ||
	    (info != CT_ESTABLISHED && info != CT_NEW && info != CT_REPLY + CT_ESTABLISHED))
		return NEXT;
	ct = AT(nf_conn, e.conntrack);
	e.reply = info >= CT_REPLY;
	e.fresh = info == CT_NEW;
	e.status = ct->status;
	e.ct_mark = ct->mark;
	e.zone = ct->zone.id;
	if (!(e.status & CT_CONFIRMED) || e.status & CT_APART ||
	    (e.fresh && permit->fresh != slot->rules) ||
	    (f.protocol == TCP && (e.fresh || !(e.status & CT_ASSURED) || !tolerates_gaps(net))))
		return NEXT;
	e.from = h->ip.from;
	e.to = h->ip.to;
	e.from_port = h->from_port;
	e.to_port = h->to_port;
	if (!lives(&f, &e, net))
		return NEXT;

	if (!(kernel->_skb_refdst & ~1ul))
		return NEXT;
	route = AT(rtable, kernel->_skb_refdst & ~1ul);
	e.mtu = room(route, kernel->dev, net);
	if (!e.mtu)
		return NEXT;
	if (out) {
		/* A bridge that does not know where a MAC is sends the packet to all
		 * ports. So it counts as the container's only where that sent from this
		 * MAC, and was let through. */
		if (route->dst.dev->ifindex != out->bridge || !same_mac(out->mac, h->ethernet.macs))
			return NEXT;
		copy_macs(e.new_macs, h->ethernet.macs);
	} else {
		if (route->dst.dev->ifindex != device)
			return NEXT;
		e.neighbour = 1;
		gateway = route->rt_gw4;
		asm volatile("" : "+r"(gateway)); /* one load each, which the verifier asks for */
		e.next_hop = route->rt_gw_family ? gateway : e.to;
	}
	if (in) {
		*(__u32 *)in->mac = *(__u32 *)(slot->macs + 6);
		*(__u16 *)(in->mac + 4) = *(__u16 *)(slot->macs + 10);
	}
	any = f;
	any.device = 0;
	if (bpf_map_lookup_elem(&turned_off, &any))
		return NEXT;

	now = bpf_ktime_get_coarse_ns();
	e.rules = slot->rules;
	e.routes = slot->routes;
	e.until = now + LEASE_NS;
	e.used = now;
	e.mark_before = slot->mark;
	e.tos = slot->tos;
	copy_macs(e.macs, slot->macs);
	e.device = device;
	e.mark = skb->mark;
	e.priority = skb->priority;
	e.addresses = plus(difference(f.from, e.from), difference(f.to, e.to));
	if (f.from == e.from && f.to == e.to)
		e.addresses = 0;
	if (f.from_port != e.from_port || f.to_port != e.to_port)
		e.ports = plus(difference(f.from_port, e.from_port),
			       difference(f.to_port, e.to_port));
	e.owner = owner;

	struct conentry *former = bpf_map_lookup_elem(&conentries, &f);

	if (former) {
		e.packets = former->packets;
		e.bytes = former->bytes;
		if (former->owner == owner) {
			bpf_map_update_elem(&conentries, &f, &e, BPF_EXIST);
			return NEXT;
		}
		drop_entry(&f, former->owner);
	}
	if (mine->entries < permit->share && !bpf_map_update_elem(&conentries, &f, &e, BPF_NOEXIST))
		__sync_fetch_and_add(&mine->entries, 1);
	return NEXT;
}

/* What flush removes: what is not used any more, and all that leads from or to a device. */
struct flushing {
	__u64 idle; /* ns */
	__u64 now;
	__u32 device;
	__u32 removed;
};

static long flush_one(void *map, const struct flow *f, struct conentry *e, struct flushing *what)
{
	if (f->device == what->device || e->device == what->device ||
	    e->used + what->idle < what->now) {
		struct flow key = *f;

		drop_entry(&key, e->owner);
		what->removed++;
	}
	return 0;
}

/* flush is SCON's flusher, run by the agent. */
SEC("syscall")
int flush(struct flushing *arguments)
{
	struct flushing what = *arguments;

	what.now = bpf_ktime_get_ns(); /* of the same clock */
	what.removed = 0;
	bpf_for_each_map_elem(&conentries, flush_one, &what, 0);
	arguments->removed = what.removed;
	return 0;
}

/* What the programs would read for a packet now, in the network namespace of the caller. */
struct generation {
	__u64 rules, routes;
	__u32 tolerates_gaps;
	__u32 unused;
};

SEC("syscall")
int generations(struct generation *g)
{
	struct net *net = bpf_get_current_task_btf()->nsproxy->net_ns;

	g->rules = rules_of(net);
	g->routes = routes_of(net);
	g->tolerates_gaps = tolerates_gaps(net);
	return 0;
}

/* A flow, and why its next packet would take the path that it would take. */
struct question {
	struct flow flow;
	__u32 reason;
};

SEC("syscall")
int why(struct question *q)
{
	struct net *net = bpf_get_current_task_btf()->nsproxy->net_ns;
	struct conentry *e;
	struct flow f = q->flow;

	e = bpf_map_lookup_elem(&conentries, &f);
	q->reason = e ? holds(&f, e, net, rules_of(net), routes_of(net), bpf_ktime_get_ns()) :
			NO_ENTRY;
	return 0;
}
