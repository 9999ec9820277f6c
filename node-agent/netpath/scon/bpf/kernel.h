/* What the programs read of the kernel. CO-RE finds each field on the kernel that loads them. */
#pragma once
#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct netns_ipv4 {
	struct {
		int counter;
	} rt_genid;
	__u8 sysctl_ip_fwd_use_pmtu;
};

struct netns_nftables {
	unsigned int base_seq;
	__u8 gencursor;
};

struct nf_tcp_net {
	__u8 tcp_be_liberal;
	__u8 tcp_ignore_invalid_rst;
};

struct nf_ip_net {
	struct nf_tcp_net tcp;
};

struct netns_ct {
	struct nf_ip_net nf_ct_proto;
};

struct net_generic;

struct net {
	struct net_generic *gen;
	struct netns_ipv4 ipv4;
	struct netns_nftables nft;
	struct netns_ct ct;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	unsigned int mtu;
	possible_net_t nd_net;
};

struct sk_buff {
	struct net_device *dev;
	unsigned long _skb_refdst;
	unsigned long _nfct;
	__u8 ip_summed : 2;
	__u8 encapsulation : 1;
};

struct nsproxy {
	struct net *net_ns;
};

struct task_struct {
	struct nsproxy *nsproxy;
};

union nf_inet_addr {
	__be32 ip;
};

union nf_conntrack_man_proto {
	__be16 all;
};

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
	__u16 l3num;
};

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
		__u8 protonum;
	} dst;
};

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
};

struct ip_ct_tcp_state {
	__u8 flags;
};

struct ip_ct_tcp {
	struct ip_ct_tcp_state seen[2];
	__u8 state;
};

struct nf_ct_udp {
	unsigned long stream_ts;
};

union nf_conntrack_proto {
	struct nf_ct_udp udp;
	struct ip_ct_tcp tcp;
};

struct nf_conn {
	__u32 timeout;
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	possible_net_t ct_net;
	__u32 mark;
	union nf_conntrack_proto proto;
};

struct dst_entry {
	struct net_device *dev;
	unsigned long _metrics;
	void *xfrm;
	void *lwtstate;
};

struct rtable {
	struct dst_entry dst;
	__u16 rt_type;
	__u8 rt_gw_family;
	__be32 rt_gw4;
	__u32 rt_mtu_locked : 1, rt_pmtu : 31;
};

struct dst_metrics {
	__u32 metrics[2];
};

struct list_head {
	struct list_head *next;
};

/* Has words, and nothing else. */
struct linux_mib {
	unsigned long mibs[1];
};

#pragma clang attribute pop

void *bpf_cast_to_kern_ctx(void *) __ksym;
void *bpf_rdonly_cast(const void *, __u32) __ksym;

/* The kernel's object of that type at an address, which may be gone: it is only read, and a read of
 * what is not mapped gives 0. */
#define AT(type, address) \
	((struct type *)bpf_rdonly_cast((void *)(address), bpf_core_type_id_kernel(struct type)))

/* The 32 or 64 bits at an address, by types that begin with such. */
#define WORD_AT(address) (AT(dst_metrics, address)->metrics[0])
#define POINTER_AT(address) ((__u64)AT(list_head, address)->next)

/* So many bits from a field on, of an object that is AT(linux_mib, …). */
#define AS(bits, words, type, field) \
	(*(const __u##bits *)((const void *)(words) + bpf_core_field_offset(struct type, field)))
