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
#include "connection.h"
#include "packet.h"

char LICENSE[] SEC("license") = "GPL";

/* The paper's design, for comparison: an entry holds until it is idle, whatever has changed. */
const volatile bool by_age = false;

/* Where nf_tables has base_seq for itself: its number among those that have a part in each network
 * namespace, by address, and the place in that part. */
const volatile __u64 nf_tables_id = 0;
const volatile __u32 base_seq_at = 0;

/* A second in jiffies, which are the programs' clock: to read them is one instruction. */
const volatile __u64 second = 0;

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

static __always_inline void count(__u32 why)
{
	__u64 *packets = bpf_map_lookup_elem(&reasons, &why);

	if (packets)
		++*packets;
}

static __always_inline bool tolerates_gaps(struct net *net)
{
	return net->ct.nf_ct_proto.tcp.tcp_be_liberal &&
	       net->ct.nf_ct_proto.tcp.tcp_ignore_invalid_rst;
}

/* Why the entry does not hold now; EXPRESS where it does. */
static __always_inline __u32 holds(const struct flow *f, const struct conentry *e,
				   struct net *net, __u64 rules, __u64 routes, __u64 until,
				   __u64 now)
{
	struct permit *permit;
	__u32 zero = 0;

	if (by_age)
		return EXPRESS;
	if (now >= until >> NUMBER_BITS)
		return SAMPLE;
	permit = bpf_map_lookup_elem(&permits, &zero);
	if (!permit || e->rules != rules || permit->established != rules ||
	    (e->fresh && permit->fresh != rules))
		return RULES;
	if (e->routes != routes)
		return ROUTES;
	if (f->protocol == TCP && !tolerates_gaps(net))
		return WINDOW;
	return lives(e->conntrack, &e->connection, net, f->protocol, now) ? EXPRESS : CONNECTION;
}

/* An entry ends before its memory may be another flow's. Another CPU may have put one in its place
 * meanwhile: that stays, and its owner keeps its share. */
static __always_inline void drop_entry(const struct flow *f, struct conentry *e)
{
	__u32 owner = e->owner;
	struct contable *t;

	e->until = 0;
	if (bpf_map_lookup_elem(&conentries, f) != e || bpf_map_delete_elem(&conentries, f))
		return;
	t = bpf_map_lookup_elem(&contables, &owner);
	if (t && t->entries)
		__sync_fetch_and_add(&t->entries, -1);
}

/* express sends the flow's packet on as the entry has it, which is valid until that time. */
static __always_inline int express(struct __sk_buff *skb, void *data, __be16 *check,
				   const struct flow *f, struct conentry *e, __u64 until,
				   __u64 now)
{
	struct bpf_redir_neigh hop = { .nh_family = INET, .ipv4_nh = e->next_hop };
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	struct ethernet *ethernet = data;
	struct ipv4 *ip = data + ETHERNET;
	__u32 summed = BPF_CORE_READ_BITFIELD(kernel, ip_summed);
	__u32 device = e->device, mark = e->mark, priority = e->priority;
	__u16 header = e->header, addresses = e->addresses, transport = e->transport;
	__be16 from_port = e->from_port, to_port = e->to_port;
	__be32 from = e->from, to = e->to;
	bool neighbour = e->neighbour;
	__u8 macs[12];

	copy_macs(macs, e->new_macs);
	barrier();
	/* Its memory may be another flow's since it was looked up. All that was read is of one flow
	 * if the end is still the same, and that may be another one. */
	if (!same_flow(&e->flow, f) || *(volatile __u64 *)&e->until != until) {
		count(NO_ENTRY);
		return NEXT;
	}

	ip->check = ~add(~ip->check, header);
	ip->ttl--;
	ip->from = from;
	ip->to = to;
	ip->from_port = from_port;
	ip->to_port = to_port;
	if (!neighbour)
		copy_macs(ethernet->macs, macs);
	if (ip->protocol == UDP && !*check) {
		/* It has no sum; what is to be summed later is of a packet within. */
	} else if (summed == SUMMED_LATER) {
		*check = add(*check, addresses); /* no more is summed so far */
	} else {
		__u16 sum = ~add(~*check, transport);

		*check = ip->protocol == UDP && !sum ? 0xffff : sum; /* UDP's 0 is no sum */
		if (summed == SUMMED_WHOLE)
			bpf_csum_update(skb, ~(__u32)addresses);
	}
	skb->mark = mark;
	skb->priority = priority;

	e->used = now;
	e->packets++;
	e->bytes += bpf_ntohs(ip->length);
	count(EXPRESS);
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
	__u32 length, size, transport, why = OTHER, zero = 0;
	struct ethernet *ethernet = data;
	struct ipv4 *ip = data + ETHERNET;
	void *payload = ip + 1;
	struct conentry *e;
	struct slot *slot;
	struct flow f;
	__u64 now, rules, routes, until;
	__be16 *check;

	if (skb->protocol != bpf_htons(0x0800) || skb->vlan_present || payload + 4 > end)
		goto regular;
	if (ethernet->type != bpf_htons(0x0800) || ip->version_and_length != 0x45 ||
	    ip->fragment & bpf_htons(FRAGMENT))
		goto regular;
	length = bpf_ntohs(ip->length);
	f.protocol = ip->protocol;
	if (f.protocol == TCP) {
		__u8 *tcp = (void *)&ip->from_port;

		if ((void *)(tcp + 20) > end)
			goto regular;
		why = CONTROL;
		if ((tcp[13] & ~TCP_STEADY) || !(tcp[13] & TCP_ACK))
			goto regular;
		transport = tcp[12] >> 4 << 2;
		why = MALFORMED;
		if (transport < 20 || length < IPV4 + transport)
			goto regular;
	} else if (f.protocol == UDP) {
		transport = 8;
		why = MALFORMED;
		if (bpf_ntohs(*(__be16 *)payload) != length - IPV4)
			goto regular;
	} else {
		goto regular;
	}
	why = LAST_HOP;
	if (ip->ttl <= 1)
		goto regular;

	f.from = ip->from;
	f.to = ip->to;
	f.from_port = ip->from_port;
	f.to_port = ip->to_port;
	f.device = skb->ifindex;
	f.unused = 0;
	rules = rules_of(net);
	routes = routes_of(net);

	why = NO_ENTRY;
	e = bpf_map_lookup_elem(&conentries, &f);
	if (!e)
		goto note;
	until = *(volatile __u64 *)&e->until;
	barrier();
	why = FRAME;
	if (!same_macs(e->macs, ethernet->macs) || e->tos != ip->tos || e->mark_before != skb->mark)
		goto note;
	now = bpf_jiffies64();
	why = holds(&f, e, net, rules, routes, until, now);
	if (why != EXPRESS) {
		if (why == CONNECTION)
			drop_entry(&f, e);
		goto note;
	}
	why = SIZE;
	size = length;
	if (skb->gso_size) { /* of a tunnel's, it is that of the packets within */
		if (BPF_CORE_READ_BITFIELD(kernel, encapsulation))
			goto note;
		size = skb->gso_size + IPV4 + transport;
	}
	if (size > e->mtu)
		goto note;

	/* What the kernel checks of a header when it comes in. */
	why = MALFORMED;
	if (!adds_up(ip) || length + ETHERNET > skb->len ||
	    (skb->gso_size && length + ETHERNET != skb->len))
		goto regular;
	/* A short frame of a NIC has bytes behind its packet, which a router leaves out. */
	if (length + ETHERNET < skb->len) {
		if (bpf_skb_change_tail(skb, length + ETHERNET, 0))
			goto regular;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
	check = data + ETHERNET + IPV4 + (f.protocol == TCP ? 16 : 6);
	if (data + HEADERS > end || (void *)(check + 1) > end)
		goto regular;
	return express(skb, data, check, &f, e, until, now);

note:
	slot = bpf_map_lookup_elem(&slots, &zero);
	if (slot) {
		slot->skb = (__u64)kernel;
		slot->flow = f;
		slot->rules = rules;
		slot->routes = routes;
		slot->mark = skb->mark;
		slot->length = ip->length;
		slot->id = ip->id;
		slot->tos = ip->tos;
		slot->ttl = ip->ttl;
		slot->known = e;
		copy_macs(slot->macs, ethernet->macs);
	}
regular:
	count(why);
	return NEXT;
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

/* number tells entries apart that are made in the same jiffy. */
static __always_inline __u32 number(struct slot *slot)
{
	return (slot->made++ & 0xfff) << 12 | (bpf_get_smp_processor_id() & 0xfff);
}

/* learn makes an entry of the slot's packet, which now leaves. */
static __noinline int learn(struct __sk_buff *skb, struct slot *slot)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	__u32 zero = 0, device = skb->ifindex, owner;
	struct contable *in, *out, *mine;
	struct conentry e = {}, *former, *entry;
	struct net *net = kernel->dev->nd_net.net;
	struct flow f = slot->flow, any;
	struct permit *permit;
	struct ethernet *ethernet = data;
	struct ipv4 *ip = data + ETHERNET;
	struct rtable *route;
	struct nf_conn *ct;
	__u64 info, now, addresses, status;
	__be32 gateway;

	/* The rules were read for packets that come by the bridge, or by the NIC itself: not
	 * by a VLAN on it, nor by another bridge. And a host's own packet, which came by none,
	 * may have the memory of one that was dropped. */
	in = bpf_map_lookup_elem(&contables, &f.device);
	if (skb->ingress_ifindex != (in ? in->bridge : f.device))
		return NEXT;
	if (skb->protocol != bpf_htons(0x0800) || skb->vlan_present || (void *)(ip + 1) > end)
		return NEXT;
	if (ethernet->type != bpf_htons(0x0800) || ip->version_and_length != 0x45 ||
	    ip->fragment & bpf_htons(FRAGMENT) || ip->protocol != f.protocol ||
	    ip->length != slot->length || ip->id != slot->id || ip->tos != slot->tos ||
	    ip->ttl != slot->ttl - 1)
		return NEXT;

	out = bpf_map_lookup_elem(&contables, &device);
	permit = bpf_map_lookup_elem(&permits, &zero);
	if (!permit || (!by_age && (!slot->rules || permit->established != slot->rules)))
		return NEXT;
	if (in) {
		owner = f.device;
		mine = in;
		*(__u32 *)in->mac = *(__u32 *)(slot->macs + 6);
		*(__u16 *)(in->mac + 4) = *(__u16 *)(slot->macs + 10);
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
	now = bpf_jiffies64();
	e.fresh = info == CT_NEW;
	if (e.fresh && (f.protocol == TCP || permit->fresh != slot->rules))
		return NEXT;
	/* Most flows are a question and its answer, and have no use for entries. */
	status = ct->status;
	if (f.protocol == UDP && !(status & CT_ASSURED) &&
	    now + UDP_STREAM * second < ct->proto.udp.stream_ts + second / 8)
		return NEXT;
	read_connection(AT(linux_mib, e.conntrack), &e.connection);
	if (!(e.connection.status & CT_CONFIRMED) || e.connection.status & CT_APART ||
	    (f.protocol == TCP &&
	     (!(e.connection.status & CT_ASSURED) || !tolerates_gaps(net) ||
	      !tells_resets(AT(linux_mib, e.conntrack)))))
		return NEXT;
	e.from = ip->from;
	e.to = ip->to;
	e.from_port = ip->from_port;
	e.to_port = ip->to_port;
	if (!translates(&f, &e, info >= CT_REPLY) ||
	    !lives(e.conntrack, &e.connection, net, f.protocol, now))
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
		if (route->dst.dev->ifindex != out->bridge || !same_mac(out->mac, ethernet->macs))
			return NEXT;
		copy_macs(e.new_macs, ethernet->macs);
	} else {
		if (route->dst.dev->ifindex != device)
			return NEXT;
		e.neighbour = 1;
		gateway = route->rt_gw4;
		asm volatile("" : "+r"(gateway)); /* one load each, which the verifier asks for */
		e.next_hop = route->rt_gw_family ? gateway : e.to;
	}
	any = f;
	any.device = 0;
	if (bpf_map_lookup_elem(&turned_off, &any))
		return NEXT;

	e.flow = f;
	e.rules = slot->rules;
	e.routes = slot->routes;
	e.used = now;
	e.mark_before = slot->mark;
	e.tos = slot->tos;
	copy_macs(e.macs, slot->macs);
	e.device = device;
	e.mark = skb->mark;
	e.priority = skb->priority;
	addresses = change(f.from, e.from) + change(f.to, e.to);
	e.addresses = fold(addresses);
	e.transport = fold(addresses + change(f.from_port, e.from_port) +
			   change(f.to_port, e.to_port));
	/* The TTL is the first byte of its word. */
	e.header = fold(addresses + (__u16)~bpf_htons(0x0100));
	e.owner = owner;

	former = slot->known ? bpf_map_lookup_elem(&conentries, &f) : NULL;
	if (former) {
		e.packets = former->packets;
		e.bytes = former->bytes;
		if (former->owner == owner) {
			former->until = 0;
			bpf_map_update_elem(&conentries, &f, &e, BPF_EXIST);
			goto begin;
		}
		drop_entry(&f, former);
	}
	if (mine->entries >= permit->share ||
	    bpf_map_update_elem(&conentries, &f, &e, BPF_NOEXIST))
		return NEXT;
	__sync_fetch_and_add(&mine->entries, 1);
begin:
	/* It is whole before it has an end: until then, who reads its memory takes it for ended. */
	entry = bpf_map_lookup_elem(&conentries, &f);
	barrier();
	if (entry)
		entry->until = (now + second) << NUMBER_BITS | number(slot);
	return NEXT;
}

/* compose learns from a packet that arrive noted and that now leaves, by the same sk_buff. An
 * express packet passes it, too: what is long stands aside. */
SEC("tc")
int compose(struct __sk_buff *skb)
{
	struct slot *slot;
	__u32 zero = 0;

	slot = bpf_map_lookup_elem(&slots, &zero);
	if (!slot || slot->skb != (__u64)bpf_cast_to_kern_ctx(skb))
		return NEXT;
	slot->skb = 0;
	return learn(skb, slot);
}

/* What flush removes: what is not used any more, and all that leads from or to a device. */
struct flushing {
	__u64 idle; /* jiffies */
	__u64 now;
	__u64 oldest; /* when what stays was used for the last time, but for what was used since */
	__u32 device;
	__u32 removed;
};

static long flush_one(void *map, const struct flow *f, struct conentry *e, struct flushing *what)
{
	if (f->device == what->device || e->device == what->device ||
	    e->used + what->idle < what->now) {
		struct flow key = *f;

		drop_entry(&key, e);
		what->removed++;
	} else if (e->used < what->oldest) {
		what->oldest = e->used;
	}
	return 0;
}

/* flush is SCON's flusher, run by the agent. */
SEC("syscall")
int flush(struct flushing *arguments)
{
	struct flushing what = *arguments;

	what.now = bpf_jiffies64();
	what.oldest = what.now;
	what.removed = 0;
	bpf_for_each_map_elem(&conentries, flush_one, &what, 0);
	arguments->now = what.now;
	arguments->oldest = what.oldest;
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
	q->reason = e ? holds(&f, e, net, rules_of(net), routes_of(net), e->until,
			      bpf_jiffies64()) :
			NO_ENTRY;
	return 0;
}

/* expire ends a flow's entry, which stays, and holds no more. */
SEC("syscall")
int expire(struct question *q)
{
	struct flow f = q->flow;
	struct conentry *e = bpf_map_lookup_elem(&conentries, &f);

	if (e)
		e->until = 0;
	return 0;
}
