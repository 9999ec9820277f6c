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
#include "entry.h"

char LICENSE[] SEC("license") = "GPL";

/* How the packet's transport has been summed. It is read as the byte that it is part of. */
static __always_inline __u32 summed(struct __sk_buff *skb)
{
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	__u64 bits;

	if (SELDOM(__CORE_RELO(kernel, ip_summed, BYTE_SIZE) != 1))
		return BPF_CORE_READ_BITFIELD(kernel, ip_summed);
	bits = *(const __u8 *)((const void *)kernel +
			       __CORE_RELO(kernel, ip_summed, BYTE_OFFSET));
	bits <<= __CORE_RELO(kernel, ip_summed, LSHIFT_U64);
	return bits >> __CORE_RELO(kernel, ip_summed, RSHIFT_U64);
}

/* express sends the flow's packet on as the entry has it, which is valid until that time. */
static __always_inline int express(struct __sk_buff *skb, void *data, struct conentry *e,
				   __u32 protocol, __u32 length, __u64 until, __u64 now)
{
	struct bpf_redir_neigh hop = { .nh_family = INET, .ipv4_nh = e->next_hop };
	__u16 *check = data + ETHERNET + IPV4 + (protocol == TCP ? 16 : 6);
	__u64 sums = BITS(64, PART(conentry, e, header));
	__u64 tags = BITS(64, PART(conentry, e, mark));
	__u32 ports = BITS(32, PART(conentry, e, from_port)), device = e->device;
	struct ipv4 *ip = data + ETHERNET;
	__u64 addresses = BITS(64, PART(conentry, e, from));
	bool neighbour = sums >> 48;
	__u32 macs[3], how;

	if (!neighbour)
		__builtin_memcpy(macs, e->new_macs, sizeof(macs));
	barrier();
	/* Its memory may be another flow's since it was looked up. All that was read is of one flow
	 * if the end is still the same. */
	if (SELDOM(*(volatile __u64 *)&e->until != until)) {
		count(NO_ENTRY);
		return NEXT;
	}

	ip->check = ~add(~ip->check, sums);
	ip->ttl--;
	BITS(64, PART(ipv4, ip, from)) = addresses;
	BITS(32, PART(ipv4, ip, from_port)) = ports;
	if (!neighbour) {
		BITS(32, data) = macs[0];
		BITS(32, data + 4) = macs[1];
		BITS(32, data + 8) = macs[2];
	}
	/* UDP may have no sum: what is to be summed later is of a packet within. */
	if (protocol == TCP || *check) {
		how = summed(skb);
		if (how == SUMMED_LATER) {
			*check = add(*check, sums >> 16); /* no more is summed so far */
		} else {
			__u16 sum = ~add(~*check, sums >> 32);

			*check = protocol == UDP && !sum ? 0xffff : sum; /* UDP's 0 is no sum */
			if (SELDOM(how == SUMMED_WHOLE))
				bpf_csum_update(skb, ~(__u32)(__u16)(sums >> 16));
		}
	}
	skb->mark = tags;
	skb->priority = tags >> 32;

	e->used = now;
	e->packets++;
	e->bytes += length;
	count(EXPRESS);
	if (neighbour)
		return bpf_redirect_neigh(device, &hop, sizeof(hop), 0);
	return bpf_redirect(device, 0);
}

/* Whether a packet is too large, which is several in one where it has a gso_size. */
static __always_inline bool too_large(struct __sk_buff *skb, const void *data, __u32 protocol,
				      __u32 length, __u32 segment, __u32 mtu)
{
	const __u8 *transport = data + ETHERNET + IPV4;
	struct sk_buff *kernel;

	if (!SELDOM(segment))
		return length > mtu;
	kernel = bpf_cast_to_kern_ctx(skb);
	/* That of a tunnel's is the size of the packets within. */
	return BPF_CORE_READ_BITFIELD(kernel, encapsulation) ||
	       segment + IPV4 + (protocol == TCP ? transport[12] >> 4 << 2 : 8) > mtu;
}

/* note has compose learn from the packet, if it leaves. */
static __always_inline void note(struct __sk_buff *skb, const void *data, struct net *net,
				 const struct flow *f, bool known)
{
	const struct ipv4 *ip = data + ETHERNET;
	struct slot *slot;
	__u32 zero = 0;

	slot = bpf_map_lookup_elem(&slots, &zero);
	if (!slot)
		return;
	slot->rules = rules_of(net);
	slot->routes = routes_of(net);
	slot->skb = (__u64)bpf_cast_to_kern_ctx(skb);
	slot->flow = *f;
	slot->head[0] = BITS(64, data);
	slot->head[1] = BITS(64, data + 8);
	slot->mark = skb->mark;
	slot->length_and_id = BITS(32, PART(ipv4, ip, length));
	slot->ttl = ip->ttl;
	slot->known = known;
}

/* forward sends on a packet of that protocol, whose header of 20 or 8 bytes is there; or notes it,
 * or neither, and it takes the regular path. */
static __always_inline int forward(struct __sk_buff *skb, void *data, struct net *net,
				   __u32 protocol)
{
	struct ipv4 *ip = data + ETHERNET;
	__u32 length = bpf_ntohs(ip->length), why, segment, rest;
	const __u8 *transport = (void *)&ip->from_port;
	struct conentry *e;
	__u64 now, until;
	struct flow f;

	if (protocol == TCP) {
		if ((transport[13] & ~TCP_STEADY) || !(transport[13] & TCP_ACK)) {
			why = BECAUSE(CONTROL);
			goto regular;
		}
		if (SELDOM(transport[12] >> 4 < 5 ||
			   length < IPV4 + (transport[12] >> 4 << 2))) {
			why = BECAUSE(MALFORMED);
			goto regular;
		}
	} else if (SELDOM(bpf_ntohs(BITS(16, transport + 4)) != length - IPV4)) {
		why = BECAUSE(MALFORMED);
		goto regular;
	}
	if (SELDOM(ip->ttl <= 1)) {
		why = BECAUSE(LAST_HOP);
		goto regular;
	}

	BITS(64, &f) = BITS(64, PART(ipv4, ip, from));
	BITS(32, &f.from_port) = BITS(32, PART(ipv4, ip, from_port));
	f.device = skb->ifindex;
	BITS(64, &f.protocol) = protocol;
	e = bpf_map_lookup_elem(&conentries, &f);
	if (!e) {
		why = BECAUSE(NO_ENTRY);
		goto note;
	}
	now = bpf_jiffies64();
	until = *(volatile __u64 *)&e->until;
	barrier();
	/* Its memory may be another flow's since it was looked up. */
	if (SELDOM(!same_flow(&e->flow, &f))) {
		why = BECAUSE(NO_ENTRY);
		goto note;
	}
	if (SELDOM(e->head[0] != BITS(64, data) || e->head[1] != BITS(64, data + 8) ||
		   e->mark_before != skb->mark)) {
		why = BECAUSE(FRAME);
		goto note;
	}
	why = holds(e, net, protocol, until, now);
	if (SELDOM(why != EXPRESS)) {
		if (why == CONNECTION)
			drop_entry(&f, e);
		goto note;
	}
	segment = skb->gso_size;
	if (SELDOM(too_large(skb, data, protocol, length, segment, e->mtu))) {
		why = BECAUSE(SIZE);
		goto note;
	}

	/* What the kernel checks of a header when it comes in. */
	rest = skb->len - length;
	if (SELDOM(!adds_up(ip) || (__s32)rest < ETHERNET || (segment && rest != ETHERNET))) {
		why = BECAUSE(MALFORMED);
		goto regular;
	}
	if (SELDOM(rest != ETHERNET)) {
		/* A short frame of a NIC has bytes behind its packet, which a router leaves out. */
		void *end;

		if (bpf_skb_change_tail(skb, length + ETHERNET, 0)) {
			why = BECAUSE(MALFORMED);
			goto regular;
		}
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + ETHERNET + IPV4 + (protocol == TCP ? 20 : 8) > end) {
			why = BECAUSE(MALFORMED);
			goto regular;
		}
		return express(skb, data, e, protocol, length, until, now);
	}
	return express(skb, data, e, protocol, length, until, now);

note:
	note(skb, data, net, &f, e);
regular:
	count(why);
	return NEXT;
}

/* arrive sends a packet on, or has it take the regular path. */
SEC("tc")
int arrive(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	struct net *net = kernel->dev->nd_net.net;
	struct ipv4 *ip = data + ETHERNET;
	void *payload = ip + 1;

	if (skb->protocol != bpf_htons(0x0800) || skb->vlan_present || payload + 4 > end ||
	    !is_plain(data) || ip->fragment & bpf_htons(FRAGMENT))
		goto other;
	if (ip->protocol == UDP)
		return forward(skb, data, net, UDP);
	if (ip->protocol == TCP && (void *)&ip->from_port + 20 <= end)
		return forward(skb, data, net, TCP);
other:
	count(OTHER);
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
	__u32 device = skb->ifindex, owner;
	struct contable *in, *out, *mine;
	struct conentry e = {}, *former, *entry;
	struct net *net = kernel->dev->nd_net.net;
	struct flow f = slot->flow, any;
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
	if (BITS(32, data + MACS) != slot->head[1] >> 32 ||
	    ip->fragment & bpf_htons(FRAGMENT) || ip->protocol != f.protocol ||
	    BITS(32, PART(ipv4, ip, length)) != slot->length_and_id || ip->ttl != slot->ttl - 1)
		return NEXT;

	out = bpf_map_lookup_elem(&contables, &device);
	if (!by_age && (!slot->rules || permits.established != slot->rules))
		return NEXT;
	if (in) {
		owner = f.device;
		mine = in;
		BITS(32, in->mac) = BITS(32, (void *)slot->head + 6);
		BITS(16, in->mac + 4) = BITS(16, (void *)slot->head + 10);
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
	if (e.fresh && (f.protocol == TCP || permits.fresh != slot->rules))
		return NEXT;
	/* Most flows are a question and its answer, and have no use for entries. */
	status = ct->status;
	if (f.protocol == UDP && !(status & CT_ASSURED) &&
	    now + UDP_STREAM * second < ct->proto.udp.stream_ts + second / 8)
		return NEXT;
	read_connection(AT(linux_mib, e.conntrack), &e.connection);
	status = status_of(&e.connection);
	if (!(status & CT_CONFIRMED) || status & CT_APART ||
	    (f.protocol == TCP && (!(status & CT_ASSURED) || !tolerates_gaps(net) ||
				   !(ct->proto.tcp.seen[0].flags & CT_TCP_MAXACK))))
		return NEXT;
	e.from = ip->from;
	e.to = ip->to;
	e.from_port = ip->from_port;
	e.to_port = ip->to_port;
	if (!translates(&e.connection, &f, ip, info >= CT_REPLY) ||
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
		if (route->dst.dev->ifindex != out->bridge || !same_mac(out->mac, data))
			return NEXT;
		__builtin_memcpy(e.new_macs, data, MACS);
	} else {
		if (route->dst.dev->ifindex != device)
			return NEXT;
		e.neighbour = 1;
		gateway = route->rt_gw4;
		asm volatile("" : "+r"(gateway)); /* one load each, which the verifier asks for */
		e.next_hop = route->rt_gw_family ? gateway : ip->to;
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
	e.head[0] = slot->head[0];
	e.head[1] = slot->head[1];
	e.device = device;
	e.mark = skb->mark;
	e.priority = skb->priority;
	addresses = change(f.from, ip->from) + change(f.to, ip->to);
	e.addresses = fold(addresses);
	e.transport = fold(addresses + change(f.from_port, ip->from_port) +
			   change(f.to_port, ip->to_port));
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
	if (mine->entries >= permits.share ||
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
	q->reason = e ? holds(e, net, f.protocol, e->until, bpf_jiffies64()) : NO_ENTRY;
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
