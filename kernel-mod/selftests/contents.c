// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whoever looks at registered memory that is mapped for DMA finds what was written,
 * and zeros elsewhere: never what the page held before. Free memory is poisoned first,
 * so that zeros are somebody's work.
 */
#include "vfio.h"

#include <sys/uio.h>

#define SIZE (32 * MiB)

static const char *bdf;

/* New memory, written at its begin and at 5 MiB, mapped for DMA. */
static struct ram begin(struct vfio *v, bool huge, uint32_t flags)
{
	struct ram r = ram_new(SIZE, huge);

	r.registration = must(ram_register(r.fd, flags));
	*v = vfio_attach(bdf);
	memset(r.at, 0x5a, 100);
	must(pwrite(r.fd, "kernel", 6, 5 * MiB));
	must(vfio_map(v, r.at, 0, SIZE));
	return r;
}

static void end(struct vfio *v, struct ram *r)
{
	vfio_close(v);
	ram_free(r);
}

static bool untouched_is_zero(const uint8_t *at)
{
	return !count_not(at + PAGE, 5 * MiB - PAGE, 0) && !count_not(at + 5 * MiB + PAGE, SIZE - 5 * MiB - PAGE, 0);
}

static bool written_is_kept(const uint8_t *at)
{
	return !count_not(at, 100, 0x5a) && !count_not(at + 100, PAGE - 100, 0) && !memcmp(at + 5 * MiB, "kernel", 6);
}

static void result(const char *who, bool huge, const uint8_t *at)
{
	ksft_test_result(written_is_kept(at) && untouched_is_zero(at), "%s, %s pages\n", who, huge ? "huge" : "small");
}

static void by_the_processor(bool huge)
{
	struct vfio v;
	struct ram r = begin(&v, huge, 0);
	struct fastiovd_stat stat = ram_stat(&r);

	ksft_test_result(stat.resident == SIZE && stat.zeroed < SIZE / 2, "mapped, not zeroed: %llu of %llu MiB are, %s pages\n",
			 stat.zeroed / MiB, stat.resident / MiB, huge ? "huge" : "small");
	result("the processor", huge, r.at);
	end(&v, &r);
}

static void by_read(bool huge)
{
	struct vfio v;
	struct ram r = begin(&v, huge, 0);
	uint8_t *copy = malloc(SIZE);

	must(pread(r.fd, copy, SIZE, 0));
	result("read()", huge, copy);
	free(copy);
	end(&v, &r);
}

static void by_another_process(bool huge)
{
	struct vfio v;
	struct ram r = begin(&v, huge, 0);
	uint8_t *copy = malloc(SIZE);
	struct iovec here = { copy, SIZE }, there = { r.at, SIZE };
	pid_t child = must(fork());
	ssize_t n;

	if (!child) {
		pause();
		_exit(0);
	}
	n = process_vm_readv(child, &here, 1, &there, 1, 0);
	ksft_test_result(n == (ssize_t)SIZE && written_is_kept(copy) && untouched_is_zero(copy),
			 "process_vm_readv of a child, %s pages: %s\n",
			 huge ? "huge" : "small", n < 0 ? strerror(errno) : "all read");
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	free(copy);
	end(&v, &r);
}

static void by_a_private_mapping(bool huge)
{
	struct vfio v;
	struct ram r = begin(&v, huge, 0);
	uint8_t *copy = must(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, r.fd, 0));

	for (size_t i = 7 * MiB; i < 8 * MiB; i += PAGE)
		copy[i + 1] = 0;	/* copies the page before anybody read it */
	result("a private copy", huge, copy);
	munmap(copy, SIZE);
	end(&v, &r);
}

static void by_the_background(bool huge)
{
	struct vfio v;
	struct ram r = begin(&v, huge, FASTIOVD_BACKGROUND);
	double since = milliseconds();
	struct fastiovd_stat stat;

	do {
		stat = ram_stat(&r);
	} while (stat.zeroed < SIZE && milliseconds() - since < 20000);
	ksft_test_result(stat.zeroed == SIZE && stat.background > SIZE / 2, "zeroed in the background: %llu MiB, %s pages\n",
			 stat.background / MiB, huge ? "huge" : "small");
	result("the background", huge, r.at);
	end(&v, &r);
}

static void on_request(bool huge)
{
	struct vfio v;
	struct ram r = begin(&v, huge, 0);

	must(ioctl(r.registration, FASTIOVD_ZERO));
	ksft_test_result(ram_stat(&r).zeroed == SIZE, "zeroed on request, %s pages\n", huge ? "huge" : "small");
	result("a request", huge, r.at);
	end(&v, &r);
}

/* What was not zeroed when the registration ended is still zeroed before it is seen. */
static void after_the_registration(bool huge)
{
	struct vfio v;
	struct ram r = begin(&v, huge, 0);

	close(r.registration);
	r.registration = -1;
	result("after the registration", huge, r.at);
	end(&v, &r);
}

static long vmstat(const char *name)
{
	char line[128];
	FILE *f = fopen("/proc/vmstat", "r");
	long n = -1;

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ' ')
			n = atol(line + strlen(name));
	if (f)
		fclose(f);
	return n;
}

static long pinned(void)
{
	int refresh = must(open("/proc/sys/vm/stat_refresh", O_WRONLY));

	must(write(refresh, "1", 1));	/* the counters of every processor */
	close(refresh);
	return vmstat("nr_foll_pin_acquired") - vmstat("nr_foll_pin_released");
}

/* A process is killed in the middle of it: nothing stays pinned. */
static void killed(void)
{
	long before = pinned();

	for (int i = 0; i < 20; i++) {
		pid_t child = must(fork());

		if (!child) {
			struct vfio v;
			struct ram r = begin(&v, i % 2, FASTIOVD_BACKGROUND);

			for (;;)
				memset(r.at, i, SIZE);
		}
		usleep(1000 + rand() % 60000);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	for (int i = 0; i < 100 && pinned() > before; i++)
		usleep(10000);
	ksft_test_result(pinned() <= before, "20 processes killed: %ld pages pinned before, %ld after\n", before, pinned());
}

int main(void)
{
	bdf = device_under_test();
	ksft_print_header();
	ksft_set_plan(2 * 10 + 1);
	srand(1);
	for (int huge = 0; huge < 2; huge++) {
		poison_free_memory();
		by_the_processor(huge);
		by_read(huge);
		by_another_process(huge);
		by_a_private_mapping(huge);
		by_the_background(huge);
		on_request(huge);
		after_the_registration(huge);
	}
	killed();
	ksft_finished();
}
