// SPDX-License-Identifier: GPL-2.0-only
/*
 * The module is taken away as soon as it can be: right after its last user was killed, whose
 * background thread may still be on its way out. It is refused as long as it is in use, and comes
 * back. fastiovd.ko lies beside this program.
 */
#include "vfio.h"

#include <libgen.h>
#include <linux/module.h>
#include <sys/syscall.h>

#define SIZE (32 * MiB)
#define ROUNDS 60

static const char *bdf;

static void load(const char *module)
{
	int fd = must(open(module, O_RDONLY | O_CLOEXEC));

	must(syscall(SYS_finit_module, fd, "", 0));
	close(fd);
}

/* Whether it is gone within that time. */
static bool unload(double milli)
{
	for (double end = milliseconds() + milli; milliseconds() < end;) {
		if (!syscall(SYS_delete_module, "fastiovd", O_NONBLOCK))
			return true;
		if (errno != EWOULDBLOCK && errno != EBUSY)
			break;
	}
	return false;
}

/* Maps registered memory until it is killed, and says when it has. */
static void use(enum pages pages, volatile bool *mapped)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);

	r.registration = must(ram_register(r.fd, FASTIOVD_BACKGROUND));
	for (;;) {
		must(vfio_map(&v, r.at, 0, SIZE));
		*mapped = true;
		must(vfio_unmap(&v, 0, SIZE));
	}
}

/*
 * The process that mapped a memory first is killed, and its background thread with it in the middle
 * of its work. The next process that maps gets another thread, which zeroes the rest.
 */
static void mapped_again(void)
{
	const size_t half = SIZE / 2;
	struct ram r = ram_new(SIZE, SMALL);
	struct vfio v = vfio_attach(bdf);
	struct fastiovd_stat first, last;
	pid_t child;

	r.registration = must(ram_register(r.fd, FASTIOVD_BACKGROUND));
	child = fork_bound();
	if (!child) {
		must(vfio_map(&v, r.at, 0, half));
		pause();
	}
	background_zeroes(&r, 1);
	kill(child, SIGKILL);
	must(waitpid(child, NULL, 0));
	first = ram_stat(&r);
	must(vfio_map(&v, r.at + half, half, half));
	background_zeroes(&r, SIZE);
	last = ram_stat(&r);
	ksft_test_result(first.background && last.background == SIZE,
			 "killed when %llu KiB are zeroed in the background, %llu after the next maps\n",
			 first.background / 1024, last.background / 1024);
	vfio_close(&v);
	ram_free(&r);
}

int main(int argc, char **argv)
{
	struct ram r;
	bool refused, gone = true;
	volatile bool *mapped = must(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
					  MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	int killed = 0, used = 0, status;
	long before = pinned();
	char module[256];
	int n;

	(void)argc;
	snprintf(module, sizeof(module), "%s/fastiovd.ko", dirname(strdup(argv[0])));
	bdf = device_under_test();
	ksft_print_header();
	ksft_set_plan(3);
	srand(1);
	for (n = 0; n < ROUNDS && gone; n++) {
		pid_t child = must(fork());

		if (!child)
			use(n % 4 < 2 ? HUGE : SMALL, mapped);
		/* Every second one has mapped memory, on a slow machine too */
		for (int i = 0; n % 2 && !*mapped && i < 20000; i++)
			usleep(1000);
		usleep(1000 + rand() % 100000);
		kill(child, SIGKILL);
		gone = unload(20000);
		must(waitpid(child, &status, 0));
		killed += WIFSIGNALED(status);
		used += *mapped;
		*mapped = false;
		if (gone)
			load(module);
	}
	ksft_test_result(gone && killed == n && used >= n / 2,
			 "%d processes were killed, %d had mapped memory: it is taken away after %d\n",
			 killed, used, n - !gone);
	mapped_again();
	r = ram_new(SIZE, SMALL);
	r.registration = must(ram_register(r.fd, 0));
	refused = !unload(100);
	ram_free(&r);
	ksft_test_result(refused && pinned() <= before,
			 "%s while it is in use, %ld pages stay pinned\n",
			 refused ? "refused" : "taken away", pinned() - before);
	ksft_finished();
}
