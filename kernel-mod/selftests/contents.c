// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every reader of registered memory that is mapped for DMA finds what was written, and
 * zeros elsewhere: never what the page held before. Free memory is poisoned first, so
 * that the kernel must have zeroed what reads as zero.
 */
#include "kvm.h"
#include "vhost.h"

#include <sys/resource.h>
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
	struct ram r = ram_new(SIZE, pages);

	r.registration = must(ram_register(r.fd, flags));
	*v = vfio_attach(bdf);
	memset(r.at, 0x5a, 100);
	if (pages == RESERVED)	/* of which no file can be written */
		memcpy(r.at + 5 * MiB, "kernel", 6);
	else
		must(pwrite(r.fd, "kernel", 6, 5 * MiB));
	must(vfio_map(v, r.at, 0, SIZE));
	return r;
}

/* Poisons memory before it frees it, since the next memory is likely to get the same pages. */
static void end(struct vfio *v, struct ram *r)
{
	vfio_close(v);
	memset(r->at, POISON, SIZE);
	ram_free(r);
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

static bool untouched_is_zero(const uint8_t *at)
{
	return !count_not(at + PAGE, 5 * MiB - PAGE, 0) &&
		!count_not(at + 5 * MiB + PAGE, SIZE - 5 * MiB - PAGE, 0);
}

static bool written_is_kept(const uint8_t *at)
{
	return !count_not(at, 100, 0x5a) && !count_not(at + 100, PAGE - 100, 0) &&
		!memcmp(at + 5 * MiB, "kernel", 6);
}

static void result(const char *who, enum pages pages, const uint8_t *at)
{
	ksft_test_result(written_is_kept(at) && untouched_is_zero(at), "%s, %s\n", who,
			 kind(pages));
}

static void by_the_processor(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	struct fastiovd_stat stat = ram_stat(&r);
	uint64_t zeroed;

	ksft_test_result(policy == FASTIOVD_TOUCHMAP ?
				 stat.resident == stat.zeroed && stat.zeroed <= 6 * MiB :
				 stat.resident == SIZE && stat.zeroed < SIZE / 2,
			 "mapped, not zeroed: %llu of %llu MiB are, %s\n",
			 stat.zeroed / MiB, stat.resident / MiB, kind(pages));
	(void)*(volatile uint8_t *)(r.at + 20 * MiB);
	zeroed = ram_stat(&r).zeroed - stat.zeroed;
	ksft_test_result(zeroed == folio_size[pages], "a touch zeroes %llu KiB, %s\n",
			 (unsigned long long)zeroed >> 10, kind(pages));
	result("the processor", pages, r.at);
	end(&v, &r);
}

static void by_read(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	uint8_t *copy = malloc(SIZE);

	must(pread(r.fd, copy, SIZE, 0));
	result("read()", pages, copy);
	free(copy);
	end(&v, &r);
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

static void by_another_process(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	uint8_t *copy = malloc(SIZE);
	struct iovec here = { copy, SIZE }, there = { r.at, SIZE };
	pid_t child = bystander();
	ssize_t n;

	n = process_vm_readv(child, &here, 1, &there, 1, 0);
	ksft_test_result(n == (ssize_t)SIZE && written_is_kept(copy) && untouched_is_zero(copy),
			 "process_vm_readv of a child, %s: %s\n",
			 kind(pages), n < 0 ? strerror(errno) : "all read");
	dismiss(child);
	free(copy);
	end(&v, &r);
}

static void by_a_private_mapping(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	uint8_t *copy = must(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, r.fd, 0));

	for (size_t i = 7 * MiB; i < 8 * MiB; i += PAGE)
		copy[i + 1] = 0;	/* copies the page before anybody read it */
	result("a private copy", pages, copy);
	munmap(copy, SIZE);
	end(&v, &r);
}

static void by_the_background(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, FASTIOVD_BACKGROUND);
	double since = milliseconds();
	struct fastiovd_stat stat;

	do {
		stat = ram_stat(&r);
	} while (stat.zeroed < SIZE && milliseconds() - since < 20000);
	ksft_test_result(stat.zeroed == SIZE && stat.background > SIZE / 2,
			 "zeroed in the background: %llu MiB, %s\n",
			 stat.background / MiB, kind(pages));
	result("the background", pages, r.at);
	end(&v, &r);
}

static void on_request(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);

	must(ioctl(r.registration, FASTIOVD_ZERO));
	ksft_test_result(ram_stat(&r).zeroed == ram_stat(&r).resident, "zeroed on request, %s\n",
			 kind(pages));
	result("a request", pages, r.at);
	end(&v, &r);
}

/* Pages that were not zeroed when the registration ended are still zeroed before they are seen. */
static void after_the_registration(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);

	close(r.registration);
	r.registration = -1;
	result("after the registration", pages, r.at);
	end(&v, &r);
}

/* A peer reads through its own mapping of the memfd, as with vhost-user. */
static void by_a_peer(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	pid_t child = must(fork());
	int status;

	if (!child) {
		const uint8_t *own = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, r.fd, 0);

		_exit(own == MAP_FAILED || !written_is_kept(own) || !untouched_is_zero(own));
	}
	must(waitpid(child, &status, 0));
	ksft_test_result(!status, "a peer's own mapping, %s\n", kind(pages));
	end(&v, &r);
}

/* Small page table entries, all empty, become one huge entry without a fault. */
static void collapsed(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);

	for (size_t at = 0; at < SIZE; at += 2 * MiB)
		madvise(r.at + at, 2 * MiB, MADV_COLLAPSE);	/* refused, mostly */
	result("a collapse", pages, r.at);
	end(&v, &r);
}

/* A process writes a part of another process's page: the rest is zero. */
static void written_through_a_process(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	uint8_t *page = r.at + 11 * MiB;
	char text[] = "a packet";
	struct iovec here = { text, sizeof(text) }, there = { page + 100, sizeof(text) };
	pid_t child = bystander();
	ssize_t n;

	n = process_vm_writev(child, &here, 1, &there, 1, 0);
	ksft_test_result(n == sizeof(text) && !memcmp(page + 100, text, n) &&
			 !count_not(page, 100, 0) &&
			 !count_not(page + 100 + n, PAGE - 100 - n, 0),
			 "process_vm_writev into a fresh page, %s\n",
			 kind(pages));
	dismiss(child);
	end(&v, &r);
}

/* Pages go into a pipe by reference, pinned and not read. */
static void by_vmsplice(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	struct iovec shown = { r.at + 6 * MiB, 16 * PAGE };
	uint8_t copy[16 * PAGE];
	size_t got = 0;
	int ends[2];

	must(pipe(ends));
	must(vmsplice(ends[1], &shown, 1, 0));
	close(ends[1]);
	for (ssize_t n; (n = must(read(ends[0], copy + got, sizeof(copy) - got))) > 0; got += n)
		;
	close(ends[0]);
	ksft_test_result(got == sizeof(copy) && !count_not(copy, got, 0), "vmsplice, %s\n",
			 kind(pages));
	end(&v, &r);
}

/* The host's kernel writes a packet's head into a page that nobody touched: the rest is zero. */
static void by_vhost(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	const size_t at = 10 * MiB + 100, head = sizeof(struct virtio_vsock_hdr);
	struct virtio_vsock_hdr want = { .src_cid = VMADDR_CID_HOST, .dst_cid = 42 };

	vhost_packet(r.at, SIZE, at, want.dst_cid);
	ksft_test_result(!memcmp(r.at + at, &want, 16) && !count_not(r.at + 10 * MiB, 100, 0) &&
			 !count_not(r.at + at + head, PAGE - 100 - head, 0),
			 "a packet from vhost, %s\n", kind(pages));
	end(&v, &r);
}

/* Blocks of a file go directly to a part of a page that nobody touched: its rest is zero. */
static void by_direct_io(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	int disk = must(open("/dev/vda", O_RDONLY | O_DIRECT));
	uint8_t *page = r.at + 12 * MiB, block[512];

	must(pread(disk, page + 1024, sizeof(block), 1024));	/* of a file system's head */
	close(disk);
	disk = must(open("/dev/vda", O_RDONLY));
	must(pread(disk, block, sizeof(block), 1024));
	close(disk);
	ksft_test_result(count_not(block, sizeof(block), 0) &&
			 !memcmp(page + 1024, block, sizeof(block)) && !count_not(page, 1024, 0) &&
			 !count_not(page + 1536, PAGE - 1536, 0),
			 "direct reads from a disk, %s\n", kind(pages));
	end(&v, &r);
}

/* KVM writes a guest's clock into a page that nobody touched: the page's rest is zero. */
static void by_kvm(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	struct guest g = guest_new();
	struct { struct kvm_msrs head; struct kvm_msr_entry clock; } msrs = {
		{ .nmsrs = 1 },
		{ .index = 0x4b564d01 /* MSR_KVM_SYSTEM_TIME_NEW */, .data = 9 * MiB | 1 },
	};
	const size_t clock = 32;	/* struct pvclock_vcpu_time_info */
	uint8_t *page = r.at + 9 * MiB;
	uint32_t exit;

	guest_memory(&g, 0, r.at, SIZE);
	must(ioctl(g.cpu, KVM_SET_MSRS, &msrs));
	r.at[8 * PAGE] = 0xf4;	/* hlt */
	exit = guest_run(&g, 8 * PAGE);
	ksft_test_result(exit == KVM_EXIT_HLT && count_not(page, clock, 0) &&
			 !count_not(page + clock, PAGE - clock, 0),
			 "KVM's own write, %s: exit %u\n", kind(pages), exit);
	guest_end(&g);
	end(&v, &r);
}

/* A core dump contains what was written, and no poison. */
static void dumped(enum pages pages)
{
	struct vfio v;
	struct ram r = begin(&v, pages, 0);
	const char *pattern = "/proc/sys/kernel/core_pattern", *core = "/tmp/fastiov-core";
	bool kept = false, poison = false;
	uint8_t page[PAGE];
	size_t size = 0;
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
	for (; f && fread(page, PAGE, 1, f) == 1; size += PAGE) {
		kept |= !count_not(page, 100, 0x5a);
		poison |= !count_not(page, PAGE, POISON);
	}
	if (f)
		fclose(f);
	unlink(core);
	ksft_test_result(size >= SIZE && kept && !poison, "a core dump of %zu MiB, %s\n",
			 size / MiB, kind(pages));
	end(&v, &r);
}

/* A process is killed in the middle of it: nothing stays pinned. */
static void killed(void)
{
	long before = pinned();

	for (int i = 0; i < 20; i++) {
		pid_t child = must(fork());

		if (!child) {
			struct vfio v;
			struct ram r = begin(&v, i % 2, policy == FASTIOVD_PAGECACHE ?
					     FASTIOVD_BACKGROUND : 0);

			for (;;)
				memset(r.at, i, SIZE);
		}
		usleep(1000 + rand() % 60000);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	for (int i = 0; i < 100 && pinned() > before; i++)
		usleep(10000);
	ksft_test_result(pinned() <= before,
			 "20 processes killed: %ld pages pinned before, %ld after, %s\n", before,
			 pinned(), kind(0));
}

int main(void)
{
	bdf = device_under_test();
	ksft_print_header();
	ksft_set_plan(4 * 19 + 3 * 17 + 2);
	srand(1);
	for (policy = FASTIOVD_PAGECACHE; policy <= FASTIOVD_TOUCHMAP; policy++) {
		for (enum pages pages = SMALL;
		     pages <= (policy == FASTIOVD_TOUCHMAP ? MIDDLE : RESERVED); pages++) {
			poison(pages);
			by_the_processor(pages);
			by_read(pages);
			by_another_process(pages);
			by_a_private_mapping(pages);
			if (policy == FASTIOVD_PAGECACHE)
				by_the_background(pages);
			on_request(pages);
			after_the_registration(pages);
			by_a_peer(pages);
			collapsed(pages);
			written_through_a_process(pages);
			by_vmsplice(pages);
			by_vhost(pages);
			by_direct_io(pages);
			by_kvm(pages);
			dumped(pages);
		}
		killed();
	}
	ksft_finished();
}
