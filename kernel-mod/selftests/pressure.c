// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernel moves memory, or takes it back, while a device has it and not all of it is
 * zeroed: it compacts, collapses, pages out, swaps, and kills processes with too much
 * memory. The device and the processor still see the same pages, nothing stays pinned,
 * and no reader ever sees what a page held before. The controls are the same with
 * FASTIOVD_TABLE: they show what the pages held, or the others prove nothing.
 */
#include "edu.h"

#include <linux/loop.h>
#include <sys/stat.h>
#include <sys/swap.h>

#define SIZE (32 * MiB)
#define HUGE_PAGES "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/"

static const char *bdf;

/*
 * With pinned pages the kernel may refuse this, which is right too. Returns whether all is in huge
 * pages then: whatever was not has been copied.
 */
static bool move(struct ram *r)
{
	bool collapsed;

	tell("/proc/sys/vm/compact_memory", "1");
	tell("/proc/sys/vm/drop_caches", "3");
	collapsed = !madvise(r->at, r->size, MADV_COLLAPSE);
	madvise(r->at, r->size, MADV_PAGEOUT);
	return collapsed;
}

/* Whether all is zero except pages of these bytes, every 8 MiB from the begin. */
static bool holds(const struct ram *r, const uint8_t bytes[4])
{
	for (size_t at = 0; at < r->size; at += PAGE)
		if (count_not(r->at + at, PAGE, at % (8 * MiB) ? 0 : bytes[at / (8 * MiB)]))
			return false;
	return true;
}

/* Whether a page of them is as somebody else left it. */
static bool poisoned(const struct ram *r)
{
	for (size_t at = 0; at < r->size; at += PAGE)
		if (!count_not(r->at + at, PAGE, POISON))
			return true;
	return false;
}

/*
 * The control of a test: with a table the pages are as they were. The first attempt does not poison
 * all free memory.
 */
static void control(const char *what, bool (*shows)(enum pages pages), enum pages pages)
{
	bool shown = false;

	allow_table(true);
	policy = FASTIOVD_TABLE;
	for (int tries = 0; tries < 20 && !shown; tries++) {
		poison_free_memory();
		shown = shows(pages);
	}
	policy = FASTIOVD_PAGECACHE;
	allow_table(false);
	ksft_test_result(shown, "control: with a table old bytes are found %s, %s\n", what,
			 pages_are[pages]);
}

static bool moved_shows(enum pages pages)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);
	bool shown;

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&v, r.at, 0, SIZE));
	move(&r);
	shown = poisoned(&r);
	vfio_close(&v);
	ram_poison(&r);
	return shown;
}

static void moved(enum pages pages)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);
	bool collapsed;

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&v, r.at, 0, SIZE));
	vfio_open(&v, bdf);
	memset(r.at, 0x33, PAGE);
	memset(r.at + 16 * MiB, 0x44, PAGE);
	move(&r);
	vfio_set_command(&v, vfio_command(&v) | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	edu_copy(&v, 0, EDU_BUFFER, false);
	move(&r);
	edu_copy(&v, EDU_BUFFER, 8 * MiB, true);
	ksft_test_result(holds(&r, (uint8_t[]){ 0x33, 0x33, 0x44, 0 }),
			 "the device writes where the processor reads, %s\n", pages_are[pages]);
	vfio_close(&v);
	if (pages != RESERVED) {
		tell(HUGE_PAGES "shmem_enabled", "advise");
		must(madvise(r.at, SIZE, MADV_HUGEPAGE));
	}
	collapsed = move(&r);
	for (int i = 0; pages != RESERVED && !collapsed && i < 20; i++)
		collapsed = move(&r);	/* a page is locked, or none is free, for a moment */
	ksft_test_result((collapsed || pages == RESERVED) &&
			 holds(&r, (uint8_t[]){ 0x33, 0x33, 0x44, 0 }),
			 "and so it stays without the device, %s, %s\n", pages_are[pages],
			 collapsed ? "which are huge ones now" : "as before");
	ram_free(&r);
}

/* A file as swap space, and back. */
static const char *swap_on(void)
{
	static char device[32];
	struct { char boot[1024]; uint32_t version, last, bad; uint8_t rest[PAGE - 1036 - 10];
		char magic[10]; } __attribute__((packed)) header = {
		.version = 1, .last = 2 * SIZE / PAGE - 1, .magic = "SWAPSPACE2",
	};
	int control = must(open("/dev/loop-control", O_RDWR)),
		file = must(memfd_create("swap", 0)), loop;

	snprintf(device, sizeof(device), "/dev/loop%d", must(ioctl(control, LOOP_CTL_GET_FREE)));
	close(control);
	must(ftruncate(file, 2 * SIZE));
	must(write(file, &header, sizeof(header)));
	loop = must(open(device, O_RDWR));
	must(ioctl(loop, LOOP_SET_FD, file));
	must(swapon(device, 0));
	close(loop);
	close(file);
	return device;
}

static void swap_off(const char *device)
{
	int loop = must(open(device, O_RDWR));

	must(swapoff(device));
	must(ioctl(loop, LOOP_CLR_FD));
	close(loop);
}

/* Memory that a device has had and given back; of it only the first page was touched. */
static struct ram given_back(enum pages pages)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&v, r.at, 0, SIZE));
	memset(r.at, 0x33, PAGE);
	vfio_close(&v);
	return r;
}

/* Swapping zeroes whatever is not up to date, with a table too: the control looks before. */
static bool given_back_shows(enum pages pages)
{
	struct ram r = given_back(pages);
	bool shown = poisoned(&r);

	ram_poison(&r);
	return shown;
}

/* Zeros come back. */
static void swapped(enum pages pages)
{
	const char *group = "/sys/fs/cgroup/fastiov-swapped", *device = swap_on();
	struct fastiovd_stat stat;
	struct ram r;
	int reclaim;

	tell("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	must(mkdir(group, 0755));
	tell("/sys/fs/cgroup/fastiov-swapped/cgroup.procs", "0");
	control("before they are swapped out", given_back_shows, pages);
	poison_free_memory();
	r = given_back(pages);
	reclaim = must(open("/sys/fs/cgroup/fastiov-swapped/memory.reclaim", O_WRONLY));
	for (int i = 0; i < 10 && ram_stat(&r).resident > SIZE / 2; i++)
		write(reclaim, "32M", 3);	/* EAGAIN: not all of it */
	close(reclaim);
	stat = ram_stat(&r);
	ksft_test_result(stat.resident <= SIZE / 2 && holds(&r, (uint8_t[]){ 0x33, 0, 0, 0 }),
			 "swapped out, %llu of %lu MiB stayed, %s\n",
			 stat.resident / MiB, SIZE / MiB, pages_are[pages]);
	ram_free(&r);
	swap_off(device);
	tell("/sys/fs/cgroup/cgroup.procs", "0");
	for (int i = 0; rmdir(group) && i < 200; i++)
		usleep(10000);
}

/*
 * An fallocate() that is killed takes back what it allocated, but not what a device got. A cgroup
 * whose memory.high is low makes it sleep on its way.
 */
static void interrupted(void)
{
	const char *group = "/sys/fs/cgroup/fastiov-interrupted";
	const size_t size = 512 * MiB, mapped = 8 * MiB;
	const uint64_t aside = 1UL << 27;	/* edu reaches 256 MiB */
	struct ram r = ram_new(size, SMALL), scratch = ram_new(PAGE, SMALL);
	struct vfio v = vfio_attach(bdf);
	uint64_t resident;
	int status;
	pid_t child;
	bool same;

	tell("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	must(mkdir(group, 0755));
	tell("/sys/fs/cgroup/fastiov-interrupted/memory.high", "16M");
	r.registration = must(ram_register(r.fd, 0));
	child = must(fork());
	if (!child) {
		tell("/sys/fs/cgroup/fastiov-interrupted/cgroup.procs", "0");
		_exit(fallocate(r.fd, 0, 0, size) != 0);
	}
	while (ram_stat(&r).resident < mapped)
		usleep(100);
	must(vfio_map(&v, r.at, 0, mapped));
	kill(child, SIGKILL);
	must(waitpid(child, &status, 0));
	resident = ram_stat(&r).resident;
	must(vfio_map(&v, scratch.at, aside, PAGE));
	vfio_open(&v, bdf);
	vfio_set_command(&v, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	memset(r.at + PAGE, 0x33, PAGE);
	edu_copy(&v, PAGE, EDU_BUFFER, false);
	edu_copy(&v, EDU_BUFFER, aside, true);
	same = !count_not(scratch.at, PAGE, 0x33);
	vfio_close(&v);
	ram_free(&scratch);
	ram_free(&r);
	for (int i = 0; rmdir(group) && i < 200; i++)
		usleep(10000);
	ksft_test_result(WIFSIGNALED(status) && same && resident >= mapped && resident < size,
			 "an fallocate() is killed: %lu MiB stay of %lu MiB of a device, %s\n",
			 resident / MiB, mapped / MiB,
			 same ? "the processor's own" : "not the processor's");
}

/* If a cgroup is too small for the memory, its process is killed or refused, and nothing stays. */
static void limited(void)
{
	enum { REFUSED = 100, HAD_ROOM, OTHERWISE };	/* how a child ends */
	const char *group = "/sys/fs/cgroup/fastiov-pressure";
	long before = pinned();
	int killed = 0, refused = 0, had_room = 0;
	char path[128];

	tell("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	for (int i = 0; i < 12; i++) {
		pid_t child;
		int status;

		must(mkdir(group, 0755));
		snprintf(path, sizeof(path), "%s/memory.max", group);
		tell(path, "16M");
		child = must(fork());
		if (!child) {
			struct vfio v;
			struct ram r;

			snprintf(path, sizeof(path), "%s/cgroup.procs", group);
			tell(path, "0");
			r = ram_new(SIZE, i % 2);
			r.registration = must(ram_register(r.fd, i & 2 ? FASTIOVD_BACKGROUND : 0));
			v = vfio_attach(bdf);
			if (!vfio_map(&v, r.at, 0, SIZE))
				_exit(HAD_ROOM);
			_exit(errno == ENOMEM ? REFUSED : OTHERWISE);
		}
		must(waitpid(child, &status, 0));
		killed += WIFSIGNALED(status);
		refused += WIFEXITED(status) && WEXITSTATUS(status) == REFUSED;
		had_room += WIFEXITED(status) && WEXITSTATUS(status) == HAD_ROOM;
		for (int tries = 0; rmdir(group) && tries < 200; tries++)
			usleep(10000);
	}
	for (int i = 0; i < 100 && pinned() > before; i++)
		usleep(10000);
	ksft_test_result(!had_room && killed + refused == 12 && pinned() <= before &&
			 access(group, F_OK),
			 "a cgroup that is too small: %d killed, %d refused, %d had room; "
			 "%ld pages pinned before, %ld after\n",
			 killed, refused, had_room, before, pinned());
}

int main(void)
{
	bdf = device_under_test();
	ksft_print_header();
	ksft_set_plan(4 * 3 + 3 * 2 + 2);
	for (enum pages pages = SMALL; pages <= RESERVED; pages++) {
		control("after they were moved", moved_shows, pages);
		poison_free_memory();
		moved(pages);
		if (pages != RESERVED)	/* is never swapped */
			swapped(pages);
	}
	interrupted();
	limited();
	ksft_finished();
}
