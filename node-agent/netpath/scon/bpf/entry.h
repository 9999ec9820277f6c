/* Whether an entry holds, by what the kernel itself has now. */
#pragma once
#include "connection.h"

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
		__u64 part = 8ull * WORD_AT(nf_tables_id);

		part += (__u64)net->gen;
		base_seq = WORD_AT(POINTER_AT(part) + base_seq_at);
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

/* A reason that the compiler does not know: it is put into its register where it is needed, and not
 * before each check. */
#define BECAUSE(reason)                                                 \
	({                                                              \
		__u64 because;                                          \
		asm volatile("%0 = %1" : "=r"(because) : "i"(reason)); \
		(__u32)because;                                         \
	})

#define SELDOM(condition) __builtin_expect(!!(condition), 0)

/* Why the entry does not hold now; EXPRESS where it does. */
static __always_inline __u32 holds(const struct conentry *e, struct net *net, __u32 protocol,
				   __u64 until, __u64 now)
{
	__u64 rules;

	if (by_age)
		return EXPRESS;
	if (SELDOM(now >= until >> NUMBER_BITS))
		return BECAUSE(SAMPLE);
	rules = rules_of(net);
	if (SELDOM(e->rules != rules || permits.established != rules ||
		   (e->fresh && permits.fresh != rules)))
		return BECAUSE(RULES);
	if (SELDOM(e->routes != routes_of(net)))
		return BECAUSE(ROUTES);
	if (protocol == TCP && SELDOM(!tolerates_gaps(net)))
		return BECAUSE(WINDOW);
	if (SELDOM(!lives(e->conntrack, &e->connection, net, protocol, now)))
		return BECAUSE(CONNECTION);
	return EXPRESS;
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
