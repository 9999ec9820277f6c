/* What the programs read of a connection of conntrack's. */
#pragma once
#include "packet.h"

/* Each read of what may be gone costs eight instructions: what lies side by side is read at once,
 * as are the time when a connection ends and its zone, and the end of its tuples and its status. */
static __always_inline void read_connection(const struct linux_mib *ct, struct connection *c)
{
	c->from[0] = AS(32, ct, nf_conn, tuplehash[0].tuple.src.u3);
	c->middle[0] = AS(64, ct, nf_conn, tuplehash[0].tuple.src.u);
	c->rest = AS(32, ct, nf_conn, tuplehash[0].tuple.dst.u);
	c->from[1] = AS(32, ct, nf_conn, tuplehash[1].tuple.src.u3);
	c->middle[1] = AS(64, ct, nf_conn, tuplehash[1].tuple.src.u);
	c->last = AS(64, ct, nf_conn, tuplehash[1].tuple.dst.u);
	c->mark = AS(32, ct, nf_conn, mark);
	c->zone = AS(64, ct, nf_conn, timeout) >> 32;
}

static __always_inline __u32 status_of(const struct connection *c)
{
	return c->last >> 32;
}

/* Whether conntrack has a TCP connection established, knows what the reply's side acknowledged, and
 * saw an ACK last. Without the former, or where it saw a SYN last, it takes any RST for the end;
 * and what it saw last stays so while packets go express. One word has all three: the flags, the
 * state behind 3 bytes, and the kind of the last packet behind 6. */
static __always_inline bool is_steady(const struct linux_mib *ct)
{
	const __u64 of = 0xffull << 48 | 0xffull << 24 | CT_TCP_MAXACK;

	return (AS(64, ct, nf_conn, proto.tcp.seen[1].flags) & of) ==
	       ((__u64)CT_TCP_ACK_SET << 48 | CT_TCP_ESTABLISHED << 24 | CT_TCP_MAXACK);
}

/* Whether the conntrack entry is there, of that network namespace, and is the one that it was:
 * its memory may be another's. */
static __always_inline bool lives(__u64 conntrack, const struct connection *c,
				  const struct net *net, __u32 protocol, __u32 now)
{
	const struct linux_mib *ct = AT(linux_mib, conntrack);
	__u64 timeout = AS(64, ct, nf_conn, timeout);

	return (__s32)((__u32)timeout - now) > 0 && timeout >> 32 == c->zone &&
	       AS(64, ct, nf_conn, ct_net) == (__u64)net &&
	       AS(32, ct, nf_conn, mark) == c->mark &&
	       (protocol != TCP || is_steady(ct)) &&
	       AS(32, ct, nf_conn, tuplehash[0].tuple.src.u3) == c->from[0] &&
	       AS(64, ct, nf_conn, tuplehash[0].tuple.src.u) == c->middle[0] &&
	       AS(32, ct, nf_conn, tuplehash[0].tuple.dst.u) == c->rest &&
	       AS(32, ct, nf_conn, tuplehash[1].tuple.src.u3) == c->from[1] &&
	       AS(64, ct, nf_conn, tuplehash[1].tuple.src.u) == c->middle[1] &&
	       AS(64, ct, nf_conn, tuplehash[1].tuple.dst.u) == c->last;
}

/* Whether packets of that side of the connection are such. */
static __always_inline bool leads(const struct connection *c, int side, __u32 protocol,
				  __be32 from, __be16 from_port, __be32 to, __be16 to_port)
{
	return c->from[side] == from &&
	       c->middle[side] == ((__u64)to << 32 | INET << 16 | from_port) &&
	       ((side ? (__u32)c->last : c->rest) & 0xffffff) == (protocol << 16 | to_port);
}

/* Whether the connection translates the flow into that of a packet, in that direction. */
static __always_inline bool translates(const struct connection *c, const struct flow *f,
				       const struct ipv4 *ip, bool reply)
{
	return leads(c, reply, f->protocol, f->from, f->from_port, f->to, f->to_port) &&
	       leads(c, !reply, f->protocol, ip->to, ip->to_port, ip->from, ip->from_port);
}
