/* What the programs read and write of a packet. */
#pragma once
#include "tables.h"

/* They are not packed, though IPv4 begins in the middle of a word: clang would read it by bytes. */
struct ethernet {
	__u8 macs[MACS]; /* to, from */
	__be16 type;
};

struct ipv4 {
	__u8 version_and_length, tos;
	__be16 length, id, fragment;
	__u8 ttl, protocol;
	__u16 check;
	__be32 from, to;
	__be16 from_port, to_port;
};

_Static_assert(sizeof(struct ethernet) + sizeof(struct ipv4) == HEADERS, "headers have no gaps");

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Whether the header's checksum holds: its words add up to a multiple of 0xffff, and not to 0. */
static __always_inline bool adds_up(const struct ipv4 *ip)
{
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < IPV4 / 4; i++)
		sum += ((const __u32 *)ip)[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/* The sum of two that are folded. */
static __always_inline __u16 add(__u16 a, __u16 b)
{
	__u32 sum = (__u32)a + b;

	return sum + (sum >> 16);
}

static __always_inline bool same_flow(const struct flow *a, const struct flow *b)
{
	const __u64 *mine = (const __u64 *)a, *other = (const __u64 *)b;

	return mine[0] == other[0] && mine[1] == other[1] && mine[2] == other[2];
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return *(const __u32 *)a == *(const __u32 *)b &&
	       *(const __u16 *)(a + 4) == *(const __u16 *)(b + 4);
}

/* The bits at an address. PART hides that they may begin in the middle of a word: clang would read
 * them by halves. */
#define BITS(bits, address) (*(__u##bits *)(void *)(address))
#define PART(type, of, field) ((void *)(of) + offsetof(struct type, field))

/* A frame of IPv4 without options, by the word that has its type, version, length and TOS. */
static __always_inline bool is_plain(const void *frame)
{
	return (BITS(32, frame + MACS) & 0xffffff) == (bpf_htons(0x0800) | 0x45 << 16);
}

/* What the change of a word adds to a sum that has it. */
static __always_inline __u64 change(__u32 before, __u32 after)
{
	return before == after ? 0 : (__u64)(__u32)~before + after;
}
