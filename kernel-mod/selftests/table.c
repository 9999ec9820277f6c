// SPDX-License-Identifier: GPL-2.0-only
/*
 * FASTIOVD_TABLE does what was published: only a guest's processor is shown zeros; the
 * host finds old bytes. hazard.c shows that the guest's devices find them too.
 */
#include "edu.h"
#include "kvm.h"

#define SIZE (64 * MiB)
#define CODE (8 * PAGE)	/* of the guest, at that offset of the memory and of its own */
#define LOOK 0x80000UL		/* where the guest has the page that it looks at */

/* Ors the bytes of the page at LOOK and writes the result to a port. */
static const uint8_t code[] = {
	0xb8, LOOK >> 4 & 0xff, LOOK >> 12,	/* mov ax, LOOK / 16 */
	0x8e, 0xd8,			/* mov ds, ax */
	0x31, 0xf6,			/* xor si, si */
	0x30, 0xd2,			/* xor dl, dl */
	0xb9, 0x00, 0x10,		/* mov cx, 4096 */
	0xac,				/* lodsb */
	0x08, 0xc2,			/* or dl, al */
	0xe2, 0xfb,			/* loop lodsb */
	0x88, 0xd0,			/* mov al, dl */
	0xe6, 0x10,			/* out 16, al */
};

static const char *bdf;

struct vm {
	struct vfio v;
	struct ram r;
	struct guest g;
	uint8_t *shown;	/* where the host has that page */
};

static struct vm begin(bool huge, uint32_t flags)
{
	struct fastiovd_range instant = { 0, MiB };
	struct vm vm;

	vm.r = ram_new(SIZE, huge);
	vm.v = vfio_attach(bdf);
	vm.r.registration = must(ram_register(vm.r.fd, flags));
	must(ioctl(vm.r.registration, FASTIOVD_INSTANT, &instant));
	must(vfio_map(&vm.v, vm.r.at, 0, SIZE));
	/* one that was poisoned, if there is any */
	for (vm.shown = vm.r.at + 8 * MiB;
	     *vm.shown != POISON && vm.shown < vm.r.at + SIZE - 2 * MiB; vm.shown += 2 * MiB)
		;
	vm.g = guest_new();
	guest_memory(&vm.g, 0, vm.r.at, LOOK);
	guest_memory(&vm.g, LOOK, vm.shown, 0x10000);
	return vm;
}

static void end(struct vm *vm)
{
	guest_end(&vm->g);
	vfio_close(&vm->v);
	ram_poison(&vm->r);
}

/* Free memory is not all poisoned at the first attempt: pages that were never used are zero. */
static struct vm begin_poisoned(bool huge)
{
	struct vm vm;

	for (int tries = 0; tries < 20; tries++) {
		poison_free_memory();
		vm = begin(huge, 0);
		if (!count_not(vm.shown, PAGE, POISON))
			return vm;
		end(&vm);
	}
	ksft_exit_fail_msg("free memory cannot be poisoned\n");
}

/* What the guest saw in its page, all bytes together; -1 if it did not get there. */
static int look(struct vm *vm)
{
	struct kvm_run *run = vm->g.run;

	if (guest_run(&vm->g, CODE) != KVM_EXIT_IO || run->io.port != 16)
		return -1;
	return *((uint8_t *)run + run->io.data_offset);
}

static void touched(bool huge)
{
	const char *pages = huge ? "huge" : "small";
	size_t folio = huge ? 2 * MiB : PAGE;
	struct vm vm = begin_poisoned(huge);
	struct fastiovd_stat before = ram_stat(&vm.r), after;
	size_t instant = huge ? 2 * MiB : MiB;
	int saw;

	ksft_test_result(before.resident == SIZE && before.zeroed == instant &&
			 !count_not(vm.r.at, instant, 0),
			 "of %lu MiB pinned, what is instant is zeroed, and nothing else, %s pages\n",
			 SIZE / MiB, pages);
	memcpy(vm.r.at + CODE, code, sizeof(code));
	ksft_test_result(!count_not(vm.shown, PAGE, POISON),
			 "the host sees what a page held before, %s pages\n", pages);
	saw = look(&vm);
	ksft_test_result(!saw, "a guest sees zeros: %#x, %s pages\n", saw, pages);
	after = ram_stat(&vm.r);
	ksft_test_result(after.zeroed == before.zeroed + folio,
			 "zeroed for it: %llu bytes, %s pages\n",
			 after.zeroed - before.zeroed, pages);
	vm.shown[5] = 0x42;
	must(madvise(vm.shown, folio, MADV_DONTNEED));	/* it faults again */
	saw = look(&vm);
	ksft_test_result(saw == 0x42, "once, and not again: %#x, %s pages\n", saw, pages);
	end(&vm);
}

static void overwritten(bool huge)
{
	struct vm vm = begin_poisoned(huge);
	int saw;

	memcpy(vm.r.at + CODE, code, sizeof(code));
	vm.shown[5] = 0x42;
	saw = look(&vm);
	ksft_test_result(!saw,
			 "what the host writes where it said nothing is wiped: %#x, %s pages\n",
			 saw, huge ? "huge" : "small");
	end(&vm);
}

static void background(bool huge)
{
	struct vm vm;
	struct fastiovd_stat stat;

	vm = begin_poisoned(huge);
	end(&vm);
	vm = begin(huge, FASTIOVD_BACKGROUND);	/* is likely to get the pages of that one */
	stat = ram_stat(&vm.r);
	for (int i = 0; i < 500 && (stat.zeroed < SIZE || stat.background < SIZE - 2 * MiB); i++) {
		usleep(10000);
		stat = ram_stat(&vm.r);
	}
	ksft_test_result(stat.zeroed == SIZE && stat.background == SIZE - (huge ? 2 * MiB : MiB) &&
			 !count_not(vm.r.at, SIZE, 0),
			 "in the background all is zeroed, %s pages\n", huge ? "huge" : "small");
	end(&vm);
}

/* Pages that fallocate() adds beyond the end of a file have no place in its table. */
static void beyond(void)
{
	struct ram r = { .size = MiB, .registration = -1 };

	r.fd = must(memfd_create("ram", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	must(ftruncate(r.fd, r.size));
	must(fallocate(r.fd, FALLOC_FL_KEEP_SIZE, 64 * r.size, PAGE));
	must(fcntl(r.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	r.at = must(mmap(NULL, r.size, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0));
	r.registration = must(ram_register(r.fd, 0));
	must(ioctl(r.registration, FASTIOVD_ZERO));
	ksft_test_result(ram_stat(&r).zeroed == PAGE, "a page beyond the end\n");
	ram_free(&r);
}

static void sized(const char *what, size_t size, int seals, int want)
{
	int fd = must(memfd_create("ram", MFD_CLOEXEC | MFD_ALLOW_SEALING)), got;

	must(ftruncate(fd, size));
	must(fcntl(fd, F_ADD_SEALS, seals));
	got = ram_register(fd, 0) < 0 ? -errno : 0;
	ksft_test_result(got == want, "%s: %d\n", what, got);
	close(fd);
}

/* Ranges that are wrong, or come too late. */
static void instant(uint64_t offset, uint64_t length, int want)
{
	struct ram r = ram_new(SIZE, false);
	struct fastiovd_range range = { offset, length };
	int got;

	r.registration = must(ram_register(r.fd, 0));
	got = ioctl(r.registration, FASTIOVD_INSTANT, &range) < 0 ? -errno : 0;
	ksft_test_result(got == want, "instant from %#lx on %#lx bytes: %d\n", offset, length, got);
	ram_free(&r);
}

static void too_late(void)
{
	struct vm vm = begin(false, 0);
	struct fastiovd_range range = { 4 * MiB, PAGE };
	int got = ioctl(vm.r.registration, FASTIOVD_INSTANT, &range) < 0 ? -errno : 0;

	ksft_test_result(got == -EBUSY, "instant after it was mapped: %d\n", got);
	end(&vm);
}

/* The registration, and with it the table, ends while the guest runs. */
static void ended(void)
{
	struct vm vm = begin_poisoned(false);

	memcpy(vm.r.at + CODE, code, sizeof(code));
	close(vm.r.registration);
	vm.r.registration = -1;
	ksft_test_result(!count_not(vm.r.at + MiB, SIZE - MiB, 0),
			 "when its registration ends all is zeroed\n");
	ksft_test_result(!look(&vm), "a guest goes on without it\n");
	end(&vm);
}

/* Nothing stays pinned of VMs that are killed at any point. */
static void killed(void)
{
	long before = pinned();
	int ends = 0, status;

	for (int i = 0; i < 10; i++) {
		pid_t child = must(fork());

		if (!child) {
			struct vm vm = begin(i % 2, FASTIOVD_BACKGROUND);

			memcpy(vm.r.at + CODE, code, sizeof(code));
			for (;;)
				look(&vm);
		}
		usleep(1000 + rand() % 300000);
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		ends += WIFSIGNALED(status);
	}
	for (int i = 0; i < 100 && pinned() > before; i++)
		usleep(10000);
	ksft_test_result(ends == 10 && pinned() <= before,
			 "10 VMs killed: %ld pages pinned before, %ld after\n", before, pinned());
}

int main(void)
{
	bdf = device_under_test();
	policy = FASTIOVD_TABLE;
	ksft_print_header();
	ksft_set_plan(2 * 7 + 12);
	allow_table(true);
	for (int huge = 0; huge < 2; huge++) {
		touched(huge);
		overwritten(huge);
		background(huge);
	}
	instant(SIZE - 1, 1, 0);
	instant(0, 0, -EINVAL);
	instant(SIZE, 1, -EINVAL);
	instant(PAGE, SIZE, -EINVAL);
	instant(UINT64_MAX, 2, -EINVAL);
	too_late();
	sized("a memfd that may grow", SIZE, F_SEAL_SHRINK, -EINVAL);
	sized("a memfd larger than the host's memory", 1UL << 45,
	      F_SEAL_SHRINK | F_SEAL_GROW, -ENOMEM);
	beyond();
	ended();
	killed();
	allow_table(false);
	ksft_finished();
}
