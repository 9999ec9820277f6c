// SPDX-License-Identifier: GPL-2.0-only
/*
 * A hostile guest's way out: its VF transmits pages that its processors never touched.
 * What leaves is read off the wire, by who runs this: for each arrangement frames of
 * ethertype 0x88b5 are sent that hold "fastiov", the number of the arrangement, that of
 * the page, and then the begin of the page. Only the controls, the barrier off and the
 * table, may show the poison that free memory is filled with.
 *
 * The device is a VF of an igb (Intel 82576), driven as its driver does: it asks its PF
 * by the mailbox to be let transmit, and is given a ring of descriptors.
 */
#include "vfio.h"

#define SIZE (64 * MiB)
#define PAGES 12
#define SHOWN 1000		/* bytes of a page, in a frame */

/* In BAR 0 of a VF. */
#define CONTROL 0x0000
#define CONTROL_RESET (1 << 26)
#define MAILBOX_MEMORY 0x0800
#define MAILBOX 0x0c40
#define MAILBOX_REQUEST (1 << 0)
#define MAILBOX_ACK (1 << 1)
#define MAILBOX_OURS (1 << 2)
#define MAILBOX_MESSAGE (1 << 4)
#define MAILBOX_RESET_DONE (1 << 7)
#define TX_BASE_LOW 0x3800
#define TX_BASE_HIGH 0x3804
#define TX_LENGTH 0x3808
#define TX_HEAD 0x3810
#define TX_TAIL 0x3818
#define TX_CONTROL 0x3828
#define TX_ENABLE (1 << 25)

#define VF_RESET 0x01
#define MESSAGE_ACK (1u << 31)

struct descriptor {
	uint64_t address;
	uint32_t command_and_length, status;
};
#define TX_DATA (3u << 20 | 1u << 29)	/* an advanced descriptor, with data */
#define TX_END (1u << 24 | 1u << 25 | 1u << 27)	/* of a frame; append a checksum; report */

struct frame {
	uint8_t to[6], from[6], type[2];
	char mark[7];
	uint8_t arrangement, page;
} __attribute__((packed));

/* The guest's first pages: what its driver needs. */
#define RING 0
#define FRAMES PAGE
#define RING_SIZE 32

static uint32_t get(struct vfio *v, uint32_t at)
{
	return *(volatile uint32_t *)(v->bar + at);
}

static void set(struct vfio *v, uint32_t at, uint32_t value)
{
	*(volatile uint32_t *)(v->bar + at) = value;
}

static void await(struct vfio *v, uint32_t at, uint32_t bits, const char *what)
{
	for (int i = 0; i < 1000; i++) {
		if ((get(v, at) & bits) == bits)
			return;
		usleep(10000);
	}
	ksft_exit_fail_msg("%s does not come\n", what);
}

/* Asks the PF to let the VF transmit, and for its address. */
static void greet(struct vfio *v, uint8_t mac[6])
{
	uint32_t answer[3];

	set(v, CONTROL, get(v, CONTROL) | CONTROL_RESET);
	usleep(10000);
	for (int i = 0; i < 100 && !(get(v, MAILBOX) & MAILBOX_OURS); i++)
		set(v, MAILBOX, MAILBOX_OURS);
	set(v, MAILBOX_MEMORY, VF_RESET);
	set(v, MAILBOX, MAILBOX_REQUEST);
	await(v, MAILBOX, MAILBOX_MESSAGE, "the PF's answer");
	for (int i = 0; i < 3; i++)
		answer[i] = get(v, MAILBOX_MEMORY + 4 * i);
	set(v, MAILBOX, MAILBOX_ACK);
	if ((answer[0] & 0xff) != VF_RESET)
		ksft_exit_fail_msg("the PF answers %#x\n", answer[0]);
	if (answer[0] & MESSAGE_ACK)	/* there is an address */
		memcpy(mac, &answer[1], 6);
}

/* Sends the pages; how many frames the device took from its ring. */
static int transmit(struct vfio *v, uint8_t *memory, uint8_t arrangement, useconds_t pause)
{
	struct descriptor *ring = (struct descriptor *)(memory + RING);
	struct frame f = { .to = { 2, 0, 0, 0, 0xbe, 0xef }, .type = { 0x88, 0xb5 },
		.mark = "fastiov", .arrangement = arrangement };
	int n = 0;

	memset(memory, 0, 2 * PAGE);
	greet(v, f.from);
	for (int i = 0; i < PAGES; i++) {
		f.page = i;
		memcpy(memory + FRAMES + i * sizeof(f), &f, sizeof(f));
		ring[n++] = (struct descriptor){ FRAMES + i * sizeof(f),
			TX_DATA | 1 << 25 | sizeof(f), (sizeof(f) + SHOWN) << 14 };
		ring[n++] = (struct descriptor){ (i + 1) * 4 * MiB, TX_DATA | TX_END | SHOWN, 0 };
	}
	set(v, TX_LENGTH, RING_SIZE * sizeof(*ring));
	set(v, TX_BASE_LOW, RING);
	set(v, TX_BASE_HIGH, 0);
	set(v, TX_HEAD, 0);
	set(v, TX_TAIL, 0);
	set(v, TX_CONTROL, get(v, TX_CONTROL) | TX_ENABLE);
	await(v, TX_CONTROL, TX_ENABLE, "the ring");
	for (int tail = 2; tail <= n; tail += 2) {
		set(v, TX_TAIL, tail);
		usleep(pause);
		for (int i = 0; i < 200 && get(v, TX_HEAD) != (uint32_t)tail; i++)
			usleep(10000);
	}
	return get(v, TX_HEAD) / 2;
}

static const char *bdf;

static int run(bool huge, uint32_t how, int flags, uint8_t arrangement)
{
	struct ram r = ram_new(SIZE, huge);
	struct vfio v = vfio_attach(bdf);
	int sent;

	policy = how;
	if (how)
		r.registration = must(ram_register(r.fd, flags));
	must(vfio_map(&v, r.at, 0, SIZE));
	vfio_open(&v, bdf);
	vfio_set_command(&v, vfio_command(&v) | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	/* where the IOMMU refuses, for so long that it is seen to be no mistake */
	sent = transmit(&v, r.at, arrangement, how == FASTIOVD_TOUCHMAP ? 700000 : 1000);
	vfio_close(&v);
	ram_poison(&r);
	return sent;
}

int main(void)
{
	static const struct {
		const char *name;
		uint32_t policy;
		int flags;
	} arrangements[] = {
		{ "control: deferred, no barrier", FASTIOVD_PAGECACHE, 0 },
		{ "control: table, with barrier", FASTIOVD_TABLE, 0 },
		{ "eager", 0, 0 },
		{ "deferred", FASTIOVD_PAGECACHE, 0 },
		{ "deferred, background zeroing", FASTIOVD_PAGECACHE, FASTIOVD_BACKGROUND },
		{ "on touch", FASTIOVD_TOUCHMAP, 0 },
	};
	const int n = sizeof(arrangements) / sizeof(*arrangements), controls = 2;

	bdf = device_under_test();
	ksft_print_header();
	ksft_set_plan(2 * n);
	for (int huge = 0; huge < 2; huge++)
		for (int i = 0; i < n; i++) {
			/* some free memory is not poisoned yet: pages never used are zero */
			int tries = i < controls ? 6 : 1, sent = 0;

			hold_master(i != 0);
			allow_table(arrangements[i].policy == FASTIOVD_TABLE);
			for (int t = 0; t < tries; t++) {
				poison_free_memory();
				sent = run(huge, arrangements[i].policy, arrangements[i].flags,
					   2 * i + huge);
			}
			hold_master(true);
			allow_table(false);
			ksft_test_result(sent == PAGES,
					 "sent %d of %d pages, arrangement %d: %s, %s pages\n",
					 sent, PAGES, 2 * i + huge,
					 arrangements[i].name, huge ? "huge" : "small");
		}
	ksft_finished();
}
