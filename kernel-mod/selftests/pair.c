// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two devices: in one address space, or each in its own. Whichever of them masters the bus first,
 * none reaches a page that is not zeroed, and one that masters the bus does not notice that the
 * other is held. And what Linux does not prevent: one writes to the registers of the other, which
 * is closed. Two of QEMU's edu are the devices.
 */
#include "edu.h"

#define SIZE (240 * MiB)	/* edu reaches 256 MiB */
#define PAGES 8
#define PEER (248 * MiB)	/* where the other's BAR is mapped */

static const char *first, *second;

static struct ram memory(struct vfio *v, size_t size)
{
	struct ram r = ram_new(size, SMALL);

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(v, r.at, 0, size));
	return r;
}

static void ask(struct vfio *v)
{
	vfio_set_command(v, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	if (!(vfio_command(v) & PCI_COMMAND_MASTER))
		ksft_exit_fail_msg("bus mastering was asked for and is not shown\n");
}

/* How many of some untouched pages are not zero as the device reads them. */
static int stale(struct vfio *v, struct ram *r, size_t from)
{
	int n = 0;

	for (int i = 1; i <= PAGES; i++) {
		memset(r->at, 0x11, PAGE);
		edu_copy(v, from + i * 0x100000UL, EDU_BUFFER, false);
		edu_copy(v, EDU_BUFFER, 0, true);
		n += count_not(r->at, PAGE, 0) != 0;
	}
	return n;
}

/* Whether the device copies a page as it is told. */
static bool copies(struct vfio *v, struct ram *r, uint8_t byte)
{
	memset(r->at, byte, PAGE);
	edu_copy(v, 0, EDU_BUFFER, false);
	edu_copy(v, EDU_BUFFER, PAGE, true);
	return !count_not(r->at + PAGE, PAGE, byte);
}

static void dismiss(pid_t asker)
{
	kill(asker, SIGKILL);
	waitpid(asker, NULL, 0);
}

static void end(struct vfio *a, struct vfio *b)
{
	vfio_close(b);
	vfio_close(a);
}

static void both_held(void)
{
	struct vfio a = vfio_attach(first), b = vfio_join(&a, second);
	struct ram r = memory(&a, SIZE);
	pid_t askers[2];
	bool held;
	int n, m;

	vfio_open(&a, first);
	vfio_open(&b, second);
	askers[0] = vfio_hold(&a, first, -1);
	askers[1] = vfio_hold(&b, second, -1);
	held = !masters(first) && !masters(second);
	vfio_let_go(askers[0]);
	vfio_let_go(askers[1]);
	n = stale(&b, &r, SIZE / 2);
	m = stale(&a, &r, SIZE / 4);
	ksft_test_result(held && !n && !m,
			 "one address space, both %s: %d and %d of %d pages showed old bytes\n",
			 held ? "are held" : "are not held", n, m, PAGES);
	dismiss(askers[0]);
	dismiss(askers[1]);
	end(&a, &b);
	ram_poison(&r);
}

/* What is there when the second device comes is zeroed, and what comes later too. */
static void joins(void)
{
	struct vfio a = vfio_attach(first), b;
	struct ram r = memory(&a, SIZE / 2), later;
	bool held;
	int n, m;

	vfio_open(&a, first);
	ask(&a);
	(void)*(volatile uint32_t *)a.bar;
	b = vfio_join(&a, second);
	later = ram_new(SIZE / 2, SMALL);
	later.registration = must(ram_register(later.fd, 0));
	must(vfio_map(&a, later.at, SIZE / 2, SIZE / 2));
	vfio_open(&b, second);
	ask(&b);
	held = !masters(second);
	n = stale(&b, &r, SIZE / 4);
	m = stale(&b, &r, SIZE / 2);
	ksft_test_result(!held && !n && !m,
			 "one joins a master and %s: %d and %d of %d pages showed old bytes\n",
			 held ? "is held" : "is not held", n, m, PAGES);
	end(&a, &b);
	ram_poison(&r);
	ram_free(&later);
}

/*
 * The memory of a VF that is not zeroed yet is zeroed before a device gets it that nobody keeps
 * from the bus, and only then.
 */
static void no_vf_joins(bool passes)
{
	struct vfio a = vfio_attach(first), b;
	struct ram r = memory(&a, 32 * MiB);
	uint64_t zeroed;

	deferred(&r, r.size);
	defer_to_any(passes);
	b = vfio_join(&a, second);
	defer_to_any(true);
	zeroed = ram_stat(&r).zeroed;
	ksft_test_result(zeroed == (passes ? 0 : r.size), "%s joins: %llu of %zu MiB are zeroed\n",
			 passes ? "another VF" : "no VF", (unsigned long long)zeroed / MiB,
			 r.size / MiB);
	end(&a, &b);
	ram_free(&r);
}

/* Each has an address space of its own. */
static void not_noticed(void)
{
	struct vfio a = vfio_attach(first), b = vfio_attach(second);
	struct ram r = memory(&a, MiB), s = memory(&b, SIZE);
	int copied = 0, n;
	pid_t asker;
	bool held;

	vfio_open(&a, first);
	vfio_open(&b, second);
	ask(&a);
	copies(&a, &r, 1);
	asker = vfio_hold(&b, second, -1);
	for (int i = 0; i < 3; i++)
		copied += copies(&a, &r, 0x20 + i);
	held = !masters(second);
	vfio_let_go(asker);
	n = stale(&b, &s, SIZE / 2);
	ksft_test_result(held && copied == 3 && !n,
			 "one is %s, the other has copied %d pages; %d of %d pages showed old bytes\n",
			 held ? "held" : "not held", copied, n, PAGES);
	dismiss(asker);
	end(&a, &b);
	ram_free(&r);
	ram_poison(&s);
}

/* A held device's BAR is not to be had for another's DMA, and then it is. */
static void peer(void)
{
	struct vfio a = vfio_attach(first), b = vfio_attach(second);
	struct ram r = memory(&a, SIZE), s = memory(&b, MiB);
	int refused, later;
	pid_t asker;
	bool held, read;

	vfio_open(&a, first);
	vfio_open(&b, second);
	asker = vfio_hold(&a, first, -1);
	refused = vfio_map(&b, (void *)a.bar, PEER, PAGE) ? errno : 0;
	held = !masters(first);
	ksft_test_result(held && refused == EFAULT, "the BAR of a device that is %s: %s\n",
			 held ? "held" : "not held", refused ? strerror(refused) : "mapped");
	vfio_let_go(asker);
	*(volatile uint64_t *)(a.bar + EDU_SOURCE) = 0x1234567;	/* waits */
	later = vfio_map(&b, (void *)a.bar, PEER, PAGE) ? errno : 0;
	ask(&b);
	edu_copy(&b, PEER, EDU_BUFFER, false);
	edu_copy(&b, EDU_BUFFER, 0, true);
	read = *(uint64_t *)(s.at + EDU_SOURCE) == 0x1234567;
	ksft_test_result(!later && read, "and then: %s, %s\n",
			 later ? strerror(later) : "mapped",
			 read ? "the other device reads it" : "the other device does not read it");
	dismiss(asker);
	end(&a, &b);
	ram_poison(&r);
	ram_free(&s);
}

/* A register that keeps what it is told: no reset reaches it, for edu has none. */
static volatile uint64_t *kept(struct vfio *v)
{
	return (volatile uint64_t *)(v->bar + EDU_SOURCE);
}

/* Has a device write that to the other's register, by DMA to PEER. */
static void tell_peer(struct vfio *v, struct ram *r, uint64_t value)
{
	memset(r->at, 0, PAGE);		/* what the other registers get starts nothing */
	*(uint64_t *)(r->at + EDU_SOURCE) = value;
	edu_copy(v, 0, EDU_BUFFER, false);
	edu_copy(v, EDU_BUFFER, PEER, true);
}

enum { OWNER = 1, BETWEEN, TENANT, STRANGER, UNMAPPED };	/* who wrote to the register */

/*
 * A limit of Linux that docs/threat-model.md names; where a row fails, Linux has changed. A
 * container maps a BAR for good: whoever has two devices in it and closes one writes to its
 * registers with the other's DMA until that mapping ends, also when it is somebody else's device
 * by then. An iommufd does not map a BAR at all.
 */
static void closed(void)
{
	const bool reaches = !under_iommufd;
	struct vfio a = vfio_attach(first), b = vfio_join(&a, second), tenant;
	struct ram r = memory(&a, MiB);
	uint64_t left, now, at_last;
	int refused;

	vfio_open(&a, first);
	vfio_open(&b, second);
	vfio_set_command(&b, PCI_COMMAND_MEMORY);
	*kept(&b) = OWNER;
	refused = vfio_map(&a, (void *)b.bar, PEER, PAGE) ? errno : 0;
	vfio_close(&b);
	ask(&a);
	tell_peer(&a, &r, BETWEEN);
	tenant = vfio_attach(second);
	vfio_open(&tenant, second);
	vfio_set_command(&tenant, PCI_COMMAND_MEMORY);
	left = *kept(&tenant);
	ksft_test_result(refused == (reaches ? 0 : EFAULT) && left == (reaches ? BETWEEN : OWNER),
			 "one is closed whose BAR the other has mapped (%s): its registers %s\n",
			 refused ? strerror(refused) : "done",
			 left == BETWEEN ? "are written to by the other" : "stay as they are");
	*kept(&tenant) = TENANT;
	tell_peer(&a, &r, STRANGER);
	now = *kept(&tenant);
	*kept(&tenant) = TENANT;
	if (reaches)
		must(vfio_unmap(&a, PEER, PAGE));
	tell_peer(&a, &r, UNMAPPED);
	at_last = *kept(&tenant);
	ksft_test_result(now == (reaches ? STRANGER : TENANT) && at_last == TENANT,
			 "and with a new tenant: %s; without that mapping: %s\n",
			 now == STRANGER ? "written to" : "not written to",
			 at_last == TENANT ? "not written to" : "written to");
	end(&a, &tenant);
	ram_free(&r);
}

/*
 * Memory on touch is of one IOMMU domain. In a container the devices of one IOMMU share it; in an
 * iommufd a second one is made for the asking, and is refused.
 */
static void on_touch(void)
{
	struct vfio a = vfio_attach(first), b = { .device = -1 };
	struct iommu_hwpt_alloc domain = { .size = sizeof(domain), .dev_id = a.id,
		.pt_id = a.ioas };
	struct ram r;
	bool copied;
	int refused = 0;

	policy = FASTIOVD_TOUCHMAP;
	r = memory(&a, MiB);
	policy = FASTIOVD_PAGECACHE;
	memset(r.at, 1, 2 * PAGE);
	if (under_iommufd)
		refused = ioctl(a.container, IOMMU_HWPT_ALLOC, &domain) ? errno : 0;
	b = vfio_join(&a, second);
	vfio_open(&b, second);
	ask(&b);
	copied = copies(&b, &r, 5);
	ksft_test_result(copied && refused == (under_iommufd ? EBUSY : 0),
			 "on touch, a second device %s; a second domain: %s\n",
			 copied ? "copies" : "does not copy",
			 refused ? strerror(refused) : under_iommufd ? "made" : "not asked for");
	end(&a, &b);
	ram_free(&r);
}

int main(void)
{
	first = device_under_test();
	second = second_device();
	ksft_print_header();
	ksft_set_plan(under_iommufd ? 8 : 10);
	poison_free_memory();
	both_held();
	joins();
	no_vf_joins(true);
	no_vf_joins(false);
	not_noticed();
	if (!under_iommufd)	/* which maps no BAR */
		peer();
	closed();
	on_touch();
	ksft_finished();
}
