// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every reader of registered memory that is mapped for DMA finds what was written, and
 * zeros elsewhere: never what the page held before. Free memory is poisoned first, so
 * that the kernel must have zeroed what reads as zero. The control of each reader is the
 * same with FASTIOVD_TABLE: it finds the poison, or its zeros prove nothing. What is zeroed
 * is counted too, so no reader comes to memory that was zeroed before.
 */
#include "kvm.h"
#include "vhost.h"

#include <linux/udmabuf.h>
#include <linux/userfaultfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define SIZE (32 * MiB)

static const char *bdf;

static const char *kind(enum pages pages)
{
	static char text[64];

	snprintf(text, sizeof(text), "%s%s", pages_are[pages],
		 policy == FASTIOVD_TOUCHMAP ? " on touch" : "");
	return text;
}

/* Returns new memory, written at its begin and at 5 MiB, mapped for DMA. */
static struct ram begin(struct vfio *v, enum pages pages, uint32_t flags)
{
	struct fastiovd_range instant = { 0, MiB };	/* a guest's code, and vhost's rings */
	struct ram r = ram_new(SIZE, pages);

	r.registration = must(ram_register(r.fd, flags));
	if (policy == FASTIOVD_TABLE)
		must(ioctl(r.registration, FASTIOVD_INSTANT, &instant));
	*v = vfio_attach(bdf);
	memset(r.at, 0x5a, 100);
	if (pages == RESERVED)	/* of which no file can be written */
		memcpy(r.at + 5 * MiB, "kernel", 6);
	else
		must(pwrite(r.fd, "kernel", 6, 5 * MiB));
	must(vfio_map(v, r.at, 0, SIZE));
	return r;
}

/* Whether nothing but what begin() wrote is zeroed or, on touch, there. */
static bool fresh(struct ram *r)
{
	struct fastiovd_stat stat = ram_stat(r);

	return policy == FASTIOVD_TOUCHMAP ?
		stat.resident == stat.zeroed && stat.zeroed <= 6 * MiB :
		stat.resident == SIZE && stat.zeroed < SIZE / 2;
}

static void end(struct vfio *v, struct ram *r)
{
	vfio_close(v);
	ram_poison(r);
}

/* A process does not get every page that a device gets: unmovable ones are kept apart. */
static void poison(enum pages pages)
{
	struct vfio v;
	struct ram r;

	poison_free_memory();
	r = begin(&v, pages, 0);
	end(&v, &r);
}

/* What a reader found: whether what was written is there, and how the rest reads. */
struct seen {
	bool kept;
	size_t bytes, zero, poison;
};

/* Adds a part that nobody wrote. */
static void unwritten(struct seen *s, const uint8_t *at, size_t size)
{
	s->bytes += size;
	s->zero += size - count_not(at, size, 0);
	s->poison += size - count_not(at, size, POISON);
}

/* What is seen of a fresh page with a part that somebody wrote. */
static struct seen around(const uint8_t *page, size_t from, size_t size, bool kept)
{
	struct seen s = { .kept = kept };

	unwritten(&s, page, from);
	unwritten(&s, page + from + size, PAGE - from - size);
	return s;
}

/* What is seen of all the memory. */
static struct seen all(const uint8_t *at)
{
	struct seen s = { .kept = !count_not(at, 100, 0x5a) &&
		!count_not(at + 100, PAGE - 100, 0) && !memcmp(at + 5 * MiB, "kernel", 6) };

	unwritten(&s, at + PAGE, 5 * MiB - PAGE);
	unwritten(&s, at + 5 * MiB + PAGE, SIZE - 5 * MiB - PAGE);
	return s;
}

static bool clean(struct seen s)
{
	return s.kept && s.bytes && s.zero == s.bytes;
}

static struct seen by_the_processor(struct ram *r)
{
	return all(r->at);
}

static struct seen by_read(struct ram *r)
{
	uint8_t *copy = malloc(SIZE);
	struct seen s;

	must(pread(r->fd, copy, SIZE, 0));
	s = all(copy);
	free(copy);
	return s;
}

/* Starts a process with the same memory, through which others can read it. */
static pid_t bystander(void)
{
	pid_t child = must(fork());

	if (!child) {
		pause();
		_exit(0);
	}
	return child;
}

static void dismiss(pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static struct seen by_another_process(struct ram *r)
{
	uint8_t *copy = malloc(SIZE);
	struct iovec here = { copy, SIZE }, there = { r->at, SIZE };
	pid_t child = bystander();
	struct seen s = {};

	if (must(process_vm_readv(child, &here, 1, &there, 1, 0)) == (ssize_t)SIZE)
		s = all(copy);
	dismiss(child);
	free(copy);
	return s;
}

static struct seen by_a_private_mapping(struct ram *r)
{
	uint8_t *copy = must(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, r->fd, 0));
	struct seen s;

	for (size_t i = 7 * MiB; i < 8 * MiB; i += PAGE)
		copy[i + 1] = 0;	/* copies the page before anybody read it */
	s = all(copy);
	munmap(copy, SIZE);
	return s;
}

/* A peer reads through its own mapping of the memfd, as with vhost-user. */
static struct seen by_a_peer(struct ram *r)
{
	struct seen *s = must(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0)), seen;
	pid_t child = must(fork());

	if (!child) {
		*s = all(must(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, r->fd, 0)));
		_exit(0);
	}
	must(waitpid(child, NULL, 0));
	seen = *s;
	munmap(s, PAGE);
	return seen;
}

/* Small page table entries, all empty, become one huge entry without a fault. */
static struct seen by_a_collapse(struct ram *r)
{
	for (size_t at = 0; at < SIZE; at += 2 * MiB)
		madvise(r->at + at, 2 * MiB, MADV_COLLAPSE);	/* refused, mostly */
	return all(r->at);
}

/* A process writes a part of another process's page: the rest is zero. */
static struct seen by_writing_through_a_process(struct ram *r)
{
	uint8_t *page = r->at + 11 * MiB;
	char text[] = "a packet";
	struct iovec here = { text, sizeof(text) }, there = { page + 100, sizeof(text) };
	pid_t child = bystander();
	ssize_t n;

	n = must(process_vm_writev(child, &here, 1, &there, 1, 0));
	dismiss(child);
	return around(page, 100, n, n == sizeof(text) && !memcmp(page + 100, text, n));
}

/* Pages go into a pipe by reference, pinned and not read. */
static struct seen by_vmsplice(struct ram *r)
{
	struct iovec shown = { r->at + 6 * MiB, 16 * PAGE };
	uint8_t copy[16 * PAGE];
	struct seen s = { .kept = true };
	size_t got = 0;
	int ends[2];

	must(pipe(ends));
	must(vmsplice(ends[1], &shown, 1, 0));
	close(ends[1]);
	for (ssize_t n; (n = must(read(ends[0], copy + got, sizeof(copy) - got))) > 0; got += n)
		;
	close(ends[0]);
	unwritten(&s, copy, got);
	return s;
}

/* The host's kernel writes a packet's head into a page that nobody touched: the rest is zero. */
static struct seen by_vhost(struct ram *r)
{
	const size_t from = 100, head = sizeof(struct virtio_vsock_hdr);
	struct virtio_vsock_hdr want = { .src_cid = VMADDR_CID_HOST, .dst_cid = 42 };
	uint8_t *page = r->at + 10 * MiB;

	vhost_packet(r->at, SIZE, 10 * MiB + from, want.dst_cid);
	return around(page, from, head, !memcmp(page + from, &want, 16));
}

/* Blocks of a file go directly to a part of a page that nobody touched: its rest is zero. */
static struct seen by_direct_io(struct ram *r)
{
	int disk = must(open("/dev/vda", O_RDONLY | O_DIRECT));
	uint8_t *page = r->at + 12 * MiB, block[512];

	must(pread(disk, page + 1024, sizeof(block), 1024));	/* of a file system's head */
	close(disk);
	disk = must(open("/dev/vda", O_RDONLY));
	must(pread(disk, block, sizeof(block), 1024));
	close(disk);
	return around(page, 1024, sizeof(block), count_not(block, sizeof(block), 0) &&
		      !memcmp(page + 1024, block, sizeof(block)));
}

/* KVM writes a guest's clock into a page that nobody touched: the page's rest is zero. */
static struct seen by_kvm(struct ram *r)
{
	struct guest g = guest_new();
	struct { struct kvm_msrs head; struct kvm_msr_entry clock; } msrs = {
		{ .nmsrs = 1 },
		{ .index = 0x4b564d01 /* MSR_KVM_SYSTEM_TIME_NEW */, .data = 9 * MiB | 1 },
	};
	const size_t clock = 32;	/* struct pvclock_vcpu_time_info */
	uint8_t *page = r->at + 9 * MiB;
	uint32_t exit;

	guest_memory(&g, 0, r->at, SIZE);
	must(ioctl(g.cpu, KVM_SET_MSRS, &msrs));
	r->at[8 * PAGE] = 0xf4;	/* hlt */
	exit = guest_run(&g, 8 * PAGE);
	guest_end(&g);
	return around(page, 0, clock, exit == KVM_EXIT_HLT && count_not(page, clock, 0));
}

/* A core dump contains what was written, and no poison. */
static struct seen by_a_core_dump(struct ram *r)
{
	const char *pattern = "/proc/sys/kernel/core_pattern", *core = "/tmp/fastiov-core";
	struct seen s = {};
	uint8_t page[PAGE];
	pid_t child;
	FILE *f;

	tell(pattern, core);
	child = must(fork());
	if (!child) {
		f = fopen("/proc/self/coredump_filter", "w");
		fprintf(f, "0x4b");	/* private and shared, anonymous, of files and hugetlbfs */
		fclose(f);
		must(setrlimit(RLIMIT_CORE, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY }));
		abort();
	}
	waitpid(child, NULL, 0);
	f = fopen(core, "r");
	while (f && fread(page, PAGE, 1, f) == 1) {
		s.kept |= !count_not(page, 100, 0x5a);
		/* the program's own pages are in it too */
		if (!count_not(page, PAGE, POISON))
			s.bytes += PAGE, s.poison += PAGE;
		else
			s.bytes += PAGE, s.zero += PAGE;
	}
	if (f)
		fclose(f);
	unlink(core);
	s.kept &= s.bytes >= r->size;
	return s;
}

/* A buffer of other devices is made of the file's pages, without a look at them. */
static struct seen by_a_dma_buffer(struct ram *r)
{
	struct udmabuf_create create = { .memfd = r->fd, .offset = 6 * MiB, .size = 2 * MiB };
	int dev = must(open("/dev/udmabuf", O_RDWR)),
		buffer = must(ioctl(dev, UDMABUF_CREATE, &create));
	uint8_t *at = must(mmap(NULL, create.size, PROT_READ, MAP_SHARED, buffer, 0));
	struct seen s = { .kept = true };

	unwritten(&s, at, create.size);
	munmap(at, create.size);
	close(buffer);
	close(dev);
	return s;
}

/* A page that the file has is put into another page table, without a fault of it. */
static struct seen by_userfaultfd(struct ram *r)
{
	const size_t size = 2 * MiB;
	uint8_t *place = must(mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
		*at = (uint8_t *)(((uintptr_t)place + size - 1) & ~(size - 1));
	int uffd = must(syscall(SYS_userfaultfd, O_CLOEXEC));
	struct uffdio_api api = { .api = UFFD_API,
		.features = UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_MINOR_HUGETLBFS };
	struct uffdio_register all = { .range = { (uintptr_t)at, size },
		.mode = UFFDIO_REGISTER_MODE_MINOR };
	struct uffdio_continue go = { .range = all.range };
	struct seen s = { .kept = true };

	must(mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, r->fd, 6 * MiB));
	must(ioctl(uffd, UFFDIO_API, &api));
	must(ioctl(uffd, UFFDIO_REGISTER, &all));
	must(ioctl(uffd, UFFDIO_CONTINUE, &go));
	unwritten(&s, at, size);
	close(uffd);
	munmap(place, 2 * size);
	return s;
}

enum { ALWAYS, IF_RESIDENT };

static const struct reader {
	const char *name;
	struct seen (*reads)(struct ram *r);
	int when;	/* pages on touch are not there for all of them */
} readers[] = {
	{ "the processor", by_the_processor, ALWAYS },
	{ "read()", by_read, ALWAYS },
	{ "process_vm_readv() of a child", by_another_process, ALWAYS },
	{ "a private copy", by_a_private_mapping, ALWAYS },
	{ "a peer's own mapping", by_a_peer, ALWAYS },
	{ "a collapse", by_a_collapse, ALWAYS },
	{ "process_vm_writev() into a fresh page", by_writing_through_a_process, ALWAYS },
	{ "vmsplice()", by_vmsplice, ALWAYS },
	{ "a packet from vhost", by_vhost, ALWAYS },
	{ "direct reads from a disk", by_direct_io, ALWAYS },
	{ "KVM's own write", by_kvm, ALWAYS },
	{ "a core dump", by_a_core_dump, ALWAYS },
	{ "a buffer of other devices", by_a_dma_buffer, ALWAYS },
	{ "userfaultfd's going on", by_userfaultfd, IF_RESIDENT },
};
#define READERS (sizeof(readers) / sizeof(*readers))

static struct seen read_by(struct seen (*reads)(struct ram *r), enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	bool was_fresh = fresh(&r);
	struct seen s = reads(&r);

	s.kept &= was_fresh;
	end(&v, &r);
	return s;
}

/*
 * Free memory is not all poisoned at the first attempt: pages that were never used are zero. In the
 * end the poison is in all of the control's pages, which the test after it is likely to get: on
 * touch, too, they come from where the kernel has memory that cannot be moved.
 */
static void control(const char *name, struct seen (*reads)(struct ram *r), enum pages pages)
{
	uint32_t tested = policy;
	struct seen s = {};

	policy = FASTIOVD_TABLE;
	for (int tries = 0; tries < 20 && !s.poison; tries++) {
		if (tries) {
			policy = FASTIOVD_PAGECACHE;
			poison(pages);
			policy = FASTIOVD_TABLE;
		}
		s = read_by(reads, pages);
	}
	policy = tested;
	ksft_test_result(s.poison, "control: with a table %s finds old bytes, %s\n", name,
			 kind(pages));
}

/* What was found before, if all of it is zeroed now; else nothing, so that the control fails. */
static struct seen wiped(struct seen before, struct ram *r)
{
	return clean(all(r->at)) ? before : (struct seen){};
}

/* With a table the processor can look at the same pages before and after something zeroes them. */
static struct seen around_a_request(struct ram *r)
{
	struct seen before = all(r->at);

	must(ioctl(r->registration, FASTIOVD_ZERO));
	return wiped(before, r);
}

static void end_registration(struct ram *r)
{
	close(r->registration);
	r->registration = -1;
}

static struct seen around_the_end(struct ram *r)
{
	struct seen before = all(r->at);

	end_registration(r);
	return wiped(before, r);
}

static void mapped(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	struct fastiovd_stat stat = ram_stat(&r);
	uint64_t zeroed;

	ksft_test_result(fresh(&r), "mapped, not zeroed: %llu of %llu MiB are, %s\n",
			 stat.zeroed / MiB, stat.resident / MiB, kind(pages));
	(void)*(volatile uint8_t *)(r.at + 20 * MiB);
	zeroed = ram_stat(&r).zeroed - stat.zeroed;
	ksft_test_result(zeroed == folio_size[pages], "a touch zeroes %llu KiB, %s\n",
			 (unsigned long long)zeroed >> 10, kind(pages));
	end(&v, &r);
}

/* Its control has no background thread, which would zero the pages before it reads them. */
static void in_the_background(enum pages pages)
{
	struct fastiovd_stat stat;
	struct vfio v;
	struct ram r;
	double since;

	control("the processor, without a background,", by_the_processor, pages);
	r = begin(&v, pages, FASTIOVD_BACKGROUND);
	since = milliseconds();
	do {
		stat = ram_stat(&r);
	} while (stat.zeroed < SIZE && milliseconds() - since < 20000);
	ksft_test_result(stat.zeroed == SIZE && stat.background > SIZE / 2,
			 "zeroed in the background: %llu MiB, %s\n",
			 stat.background / MiB, kind(pages));
	ksft_test_result(clean(all(r.at)), "the background, %s\n", kind(pages));
	end(&v, &r);
}

/* On touch there is nothing that a request could zero, and it allocates nothing. */
static void on_request(enum pages pages)
{
	struct fastiovd_stat before, after;
	struct vfio v;
	struct ram r;
	bool was_fresh;

	control("the processor, before a request and not after it,", around_a_request, pages);
	r = begin(&v, pages, 0);
	was_fresh = fresh(&r);
	before = ram_stat(&r);
	must(ioctl(r.registration, FASTIOVD_ZERO));
	after = ram_stat(&r);
	ksft_test_result(was_fresh && after.zeroed == after.resident &&
			 after.resident == before.resident,
			 "zeroed on request: %llu KiB, %llu before, of %llu, %s\n",
			 after.zeroed >> 10, before.zeroed >> 10, after.resident >> 10,
			 kind(pages));
	ksft_test_result(clean(all(r.at)), "a request, %s\n", kind(pages));
	end(&v, &r);
}

/* Pages that were not zeroed when the registration ended are still zeroed before they are seen. */
static void after_the_registration(enum pages pages)
{
	struct vfio v;
	struct ram r;
	bool was_fresh;

	control("the processor, before the registration ends and not after it,", around_the_end,
		pages);
	r = begin(&v, pages, 0);
	was_fresh = fresh(&r);
	end_registration(&r);
	ksft_test_result(was_fresh && clean(all(r.at)), "after the registration, %s\n",
			 kind(pages));
	end(&v, &r);
}

/* Maps memory and writes to it until it is killed; says when it has written to all of it. */
static void write_for_ever(bool huge, int written)
{
	struct vfio v;
	struct ram r = begin(&v, huge, policy == FASTIOVD_PAGECACHE ? FASTIOVD_BACKGROUND : 0);

	memset(r.at, 1, SIZE);
	must(write(written, "x", 1));
	for (;;)
		memset(r.at, 2, SIZE);
}

/*
 * A process is killed in the middle of it: nothing stays pinned. Half of them are killed at any
 * time, and half not before they have all of their pages pinned.
 */
static void killed(void)
{
	long before = pinned(), had = 0;
	int written[2], ends = 0, status;
	char byte;

	for (int i = 0; i < 20; i++) {
		pid_t child;

		must(pipe(written));
		child = must(fork());
		if (!child)
			write_for_ever(i % 2, written[1]);
		close(written[1]);
		if (i & 2 && read(written[0], &byte, 1) != 1)
			ksft_exit_fail_msg("a process has ended before it was killed\n");
		usleep(1000 + rand() % 60000);
		if (i & 2)
			had += pinned() - before >= (long)(SIZE / PAGE);
		kill(child, SIGKILL);
		must(waitpid(child, &status, 0));
		ends += WIFSIGNALED(status);
		close(written[0]);
	}
	for (int i = 0; i < 100 && pinned() > before; i++)
		usleep(10000);
	ksft_test_result(ends == 20 && had == 10 && pinned() <= before,
			 "%d processes killed, %ld with pinned pages: %ld pages pinned before, %ld after, %s\n",
			 ends, had, before, pinned(), kind(0));
}

int main(void)
{
	bdf = device_under_test();
	ksft_print_header();
	ksft_set_plan(4 * (2 * READERS + 10) + 3 * (2 * READERS - 2 + 7) + 2);
	srand(1);
	allow_table(true);
	for (policy = FASTIOVD_PAGECACHE; policy <= FASTIOVD_TOUCHMAP; policy++) {
		bool touch = policy == FASTIOVD_TOUCHMAP;

		for (enum pages pages = SMALL; pages <= (touch ? MIDDLE : RESERVED); pages++) {
			poison(pages);
			mapped(pages);
			for (size_t i = 0; i < READERS; i++) {
				if (touch && readers[i].when == IF_RESIDENT)
					continue;
				control(readers[i].name, readers[i].reads, pages);
				ksft_test_result(clean(read_by(readers[i].reads, pages)),
						 "%s, %s\n", readers[i].name, kind(pages));
			}
			if (!touch)
				in_the_background(pages);
			on_request(pages);
			after_the_registration(pages);
		}
		killed();
	}
	allow_table(false);
	ksft_finished();
}
