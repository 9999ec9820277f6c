/* What the programs keep, and what the agent sees of it. */
#pragma once
#include "kernel.h"

#define MAX_ENTRIES 131072
#define MAX_PORTS 1024

enum {
	NEXT = -1, /* TCX_NEXT: programs behind this one, and the regular path */
	DROP = 2, /* TCX_DROP */

	ETHERNET = 14,
	IPV4 = 20,
	HEADERS = ETHERNET + IPV4 + 4, /* with the two ports */
	MACS = 12,
	TCP = 6,
	UDP = 17,
	INET = 2, /* AF_INET */
	UNICAST = 1, /* RTN_UNICAST */
	MTU_LOCKED = 1 << 2, /* RTAX_MTU, of RTAX_LOCK */
	UDP_STREAM = 2, /* seconds after its begin, conntrack notes, a flow may be ASSURED */
	NUMBER_BITS = 24, /* of until, for what is not time */
	FRAGMENT = 0x3fff, /* more follow, or an offset */
	TCP_ACK = 0x10,
	TCP_STEADY = TCP_ACK | 0x08 | 0x40 | 0x80, /* with PSH, ECE, CWR */
	SUMMED_WHOLE = 2, /* CHECKSUM_COMPLETE: the NIC has summed all of the packet */
	SUMMED_LATER = 3, /* CHECKSUM_PARTIAL */

	CT_POINTER = ~7,
	CT_INFO = 7,
	CT_ESTABLISHED = 0,
	CT_NEW = 2,
	CT_REPLY = 3,
	CT_TCP_ESTABLISHED = 3,
	CT_TCP_ACK_SET = 3, /* TCP_ACK_SET, of the last packet */
	CT_TCP_MAXACK = 0x20, /* IP_CT_TCP_FLAG_MAXACK_SET, of an end */
	CT_ASSURED = 1 << 2,
	CT_CONFIRMED = 1 << 3,
	/* A sequence that is moved, an end, a helper, a flow table. */
	CT_APART = 1 << 6 | 1 << 9 | 1 << 13 | 1 << 14 | 1 << 15,
};

/* Why a packet took the path that it took; reasons of the Go side have the same order. */
enum reason {
	EXPRESS,
	NO_ENTRY, /* of a flow that has none: the first packets, or one that cannot have one */
	OTHER, /* neither TCP nor UDP over plain IPv4, options, fragments */
	CONTROL, /* SYN, FIN, RST, URG */
	MALFORMED, /* a length or checksum of IPv4 that does not hold */
	LAST_HOP, /* TTL */
	FRAME, /* MACs, TOS or mark are not those that the entry was learned with */
	SIZE, /* above the MTU */
	SAMPLE, /* the lease is over */
	RULES, /* have changed, or do not permit it */
	ROUTES, /* have changed */
	CONNECTION, /* conntrack has it no more, or in another state */
	WINDOW, /* conntrack would reset TCP that it does not see */
	REASONS,
};

struct flow {
	__be32 from, to;
	__be16 from_port, to_port;
	__u32 device; /* that it comes in by */
	__u32 protocol;
	__u32 unused; /* whole words are compared faster */
} __attribute__((aligned(8)));

/* What identifies a connection, as conntrack's entry has it. */
struct connection {
	__u64 middle[2]; /* of its tuples: a port, the family, the other address */
	__u32 from[2];
	__u64 last; /* the second one's other port, protocol and direction, and the status */
	__u32 rest; /* the other port, the protocol and the direction of the first */
	__u32 mark, zone;
	__u32 unused;
};

struct conentry {
	/* What it holds for. */
	struct flow flow;
	__u64 conntrack;
	struct connection connection;
	__u64 rules, routes;
	__u64 until; /* when its lease ends, and a number; 0: it has ended */
	__u64 head[2]; /* how its frames begin: MACs, type, version and length, TOS */
	__u32 mark_before;
	__u16 mtu;
	__u8 fresh; /* conntrack had seen no answer */
	__u8 unused;

	/* What the packets become. Each line is read as one word. */
	__be32 from, to;
	__be16 from_port, to_port;
	/* What is added to sums: of the header; of the addresses; of these and the ports. And
	 * whether the kernel finds the MAC of the next hop. */
	__u16 header, addresses, transport, neighbour;
	__u32 mark, priority;
	__u32 device;
	__be32 next_hop;
	__u32 new_macs[3];

	__u32 owner;
	__u64 used; /* jiffies */
	__u64 packets, bytes; /* of the express path; two CPUs at once may miss one */
};

/* The part of the Conentries that is a container's: a port of the bridge. */
struct contable {
	__u32 bridge;
	__u32 entries;
	__u8 mac[6]; /* that what passed from it came from */
	__u8 unused[2];
};

/* What the agent has read of the rules: the generation where they permit express. And how many
 * entries a container may have. */
struct permit {
	__u64 established;
	__u64 fresh; /* also before an answer */
	__u64 share;
};

/* Flows that the operator has put on the regular path, by any device. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct flow);
	__type(value, __u8);
} turned_off SEC(".maps");

/* The packet that is on its way on this CPU. */
struct slot {
	__u64 skb;
	struct flow flow;
	__u64 rules, routes;
	__u64 head[2];
	__u32 mark;
	__u32 length_and_id;
	__u8 ttl;
	bool known; /* its flow had an entry */
	__u32 made; /* entries, on this CPU */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_ENTRIES);
	__type(key, struct flow);
	__type(value, struct conentry);
} conentries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct contable);
} contables SEC(".maps");

/* It is a map of one value, and no call looks that up. */
volatile struct permit permits SEC(".data.permits");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, __u64);
} reasons SEC(".maps");
