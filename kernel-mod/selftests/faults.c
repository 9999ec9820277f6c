// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every allocation on the way of a mapping fails once, each in its turn: the kernel's fault
 * injection has the nth of a thread's fail. What the kernel was asked for fails or is done; nothing
 * stays pinned, nobody sees an old byte, and the same works afterwards.
 */
#include "edu.h"

#include <sys/syscall.h>

#define MOST 4000	/* allocations of one step */

static const char *bdf;
static size_t size;	/* of a memory: small pages are many allocations each */
static int nth;	/* opened before anything fails */

static void fail_all_kinds(void)
{
	static const char *const kinds[] = { "failslab", "fail_page_alloc" };
	char path[128];

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/ignore-gfp-wait", kinds[i]);
		tell(path, "N");
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/verbose", kinds[i]);
		tell(path, "0");
	}
	tell("/sys/kernel/debug/fail_page_alloc/ignore-gfp-highmem", "N");
	tell("/sys/kernel/debug/fail_page_alloc/min-order", "0");
}

/* From here on the nth allocation of this thread fails. */
static void fail(int n)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", n);
	must(pwrite(nth, text, strlen(text), 0));
}

/* Whether one has failed since; no more do. */
static bool has_failed(void)
{
	char text[16] = "";

	must(pread(nth, text, sizeof(text) - 1, 0));
	must(pwrite(nth, "0", 1, 0));
	return atoi(text) == 0;
}

struct state {
	struct ram r;
	struct vfio v;
	uint32_t flags;
	bool mapped;
};

/* What is asked for: 0, or an error. */
static int registers(struct state *s)
{
	s->r.registration = ram_register(s->r.fd, s->flags);
	return s->r.registration < 0 ? errno : 0;
}

static int maps(struct state *s)
{
	int err = vfio_map(&s->v, s->r.at, 0, size) ? errno : 0;

	s->mapped = !err;
	return err;
}

static int touches(struct state *s)
{
	char byte = 0;

	for (size_t at = 0; at < size; at += 16 * PAGE)
		if (pwrite(s->r.fd, &byte, 1, at) < 0)
			return errno;
	return 0;
}

static int faults(struct state *s)
{
	for (size_t at = 0; at < size; at += 16 * PAGE)
		(void)*(volatile uint8_t *)(s->r.at + at);
	return 0;
}

static int masters_bus(struct state *s)
{
	uint16_t command = PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;

	return pwrite(s->v.device, &command, 2, s->v.config + PCI_COMMAND) < 0 ? errno : 0;
}

/* What allocates nothing is not among them: to master the bus, and to touch hugetlbfs memory. */
static const struct step {
	const char *name;
	uint32_t policy, flags;
	int (*asks)(struct state *s);
} steps[] = {
	{ "a registration", FASTIOVD_PAGECACHE, 0, registers },
	{ "a registration on touch", FASTIOVD_TOUCHMAP, 0, registers },
	{ "a mapping", FASTIOVD_PAGECACHE, 0, maps },
	{ "a mapping, with a background", FASTIOVD_PAGECACHE, FASTIOVD_BACKGROUND, maps },
	{ "a mapping on touch", FASTIOVD_TOUCHMAP, 0, maps },
	{ "a touch", FASTIOVD_PAGECACHE, 0, faults },
	{ "pwrite() on touch", FASTIOVD_TOUCHMAP, 0, touches },
	{ "a touch on touch", FASTIOVD_TOUCHMAP, 0, faults },
};

/* Has all that comes before it. */
static struct state begin(const struct step *step, enum pages pages)
{
	struct state s = { .r = ram_new(size, pages), .v = vfio_attach(bdf), .flags = step->flags };

	policy = step->policy;
	vfio_open(&s.v, bdf);
	if (step->asks != registers)
		must(registers(&s) ? -1 : 0);
	if (step->asks != registers && step->asks != maps)
		must(maps(&s) ? -1 : 0);
	return s;
}

/* Everybody finds zeros, the device too, and a background that was asked for comes. */
static bool works(struct state *s)
{
	if (s->r.registration < 0 && registers(s))
		return false;
	if (!s->mapped && maps(s))
		return false;
	if (s->flags & FASTIOVD_BACKGROUND) {
		/* what is mapped wakes it */
		must(vfio_unmap(&s->v, 0, size));
		must(maps(s) ? -1 : 0);
		for (int i = 0; i < 500 && ram_stat(&s->r).zeroed < size; i++)
			usleep(10000);
		if (ram_stat(&s->r).zeroed < size)
			return false;
	}
	masters_bus(s);
	s->r.at[0] = s->r.at[size / 2] = 0;
	edu_copy(&s->v, size / 2, EDU_BUFFER, false);
	memset(s->r.at, 1, PAGE);
	edu_copy(&s->v, EDU_BUFFER, 0, true);
	return !count_not(s->r.at, size, 0);
}

static void fail_each(const struct step *step, enum pages pages)
{
	long before = pinned();
	int n, refused = 0, wrong = 0;
	bool failed = true;

	for (n = 1; failed && n < MOST; n++) {
		struct state s = begin(step, pages);
		int err;

		fail(n);
		err = step->asks(&s);
		failed = has_failed();
		refused += err != 0;
		if (err && err != ENOMEM && err != ENOSPC && err != EINTR && !wrong++)
			ksft_print_msg("allocation %d: %s\n", n, strerror(err));
		if (!works(&s) && !wrong++)
			ksft_print_msg("after allocation %d had failed it does not work\n", n);
		vfio_close(&s.v);
		ram_poison(&s.r);
	}
	for (int i = 0; i < 100 && pinned() > before; i++)
		usleep(10000);
	ksft_test_result(!failed && n > 2 && !wrong && pinned() <= before,
			 "%s, %s: each of %d allocations fails, %d are noticed, %ld pages stay pinned\n",
			 step->name, pages_are[pages], n - 2, refused, pinned() - before);
}

int main(void)
{
	const size_t n = sizeof(steps) / sizeof(*steps);

	bdf = device_under_test();
	if (access("/sys/kernel/debug/failslab", F_OK))
		ksft_exit_skip("the kernel injects no faults\n");
	ksft_print_header();
	ksft_set_plan(2 * n + 2);
	fail_all_kinds();
	nth = must(open("/proc/thread-self/fail-nth", O_RDWR));
	poison_free_memory();
	for (enum pages pages = SMALL; pages <= RESERVED; pages++) {
		size = pages == SMALL ? MiB / 4 : 4 * MiB;
		for (size_t i = 0; i < n; i++) {
			/* hugetlbfs has no memory on touch; in 64 KiB there is nothing else */
			if (pages == MIDDLE ||
			    (pages == RESERVED &&
			     (steps[i].policy == FASTIOVD_TOUCHMAP || steps[i].flags ||
			      steps[i].asks == faults)))
				continue;
			fail_each(&steps[i], pages);
		}
	}
	ksft_finished();
}
