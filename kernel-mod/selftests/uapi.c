// SPDX-License-Identifier: GPL-2.0-only
/* Tests every error that fastiovd.h documents, and that a refused request leaves nothing behind. */
#include "vfio.h"

#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>

static int dev;

static int request(uint32_t size, uint32_t policy, int memfd, uint32_t flags)
{
	struct fastiovd_register r = { .size = size, .policy = policy, .memfd = memfd,
		.flags = flags };
	int fd = ioctl(dev, FASTIOVD_REGISTER, &r);

	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

static int memfd(unsigned int flags, unsigned int seals)
{
	int fd = must(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));

	must(ftruncate(fd, 2 * MiB));
	if (seals)
		must(fcntl(fd, F_ADD_SEALS, seals));
	return fd;
}

static void expect(const char *what, int got, int want)
{
	ksft_test_result(got == want, "%s: %s\n", what, want ? strerror(-want) : "accepted");
	if (got != want)
		ksft_print_msg("got %d, not %d\n", got, want);
}

struct writing {
	int memfd;
	void *from;
};

static void *write_one(void *arg)
{
	struct writing *w = arg;

	must(pwrite(w->memfd, w->from, 1, 0));
	return NULL;
}

/* How long the last close takes while a write() to the memfd waits for what it writes. */
static double end_beside_a_writer(int memfd)
{
	struct writing w = { memfd, must(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS,
					      -1, 0)) };
	struct uffdio_register missing = { .range = { (uintptr_t)w.from, PAGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_zeropage zero = { .range = missing.range };
	int uffd = must(syscall(SYS_userfaultfd, O_CLOEXEC)), ended[2];
	int registration = must(ram_register(memfd, 0));
	struct uffdio_api api = { .api = UFFD_API };
	struct pollfd end = { .events = POLLIN };
	struct uffd_msg waits;
	pthread_t writer;
	double took;
	pid_t child;

	must(ioctl(uffd, UFFDIO_API, &api));
	must(ioctl(uffd, UFFDIO_REGISTER, &missing));
	pthread_create(&writer, NULL, write_one, &w);
	must(read(uffd, &waits, sizeof(waits)));
	must(pipe(ended));
	child = must(fork());
	if (!child) {
		usleep(100000);		/* the last that has it */
		close(registration);
		must(write(ended[1], "x", 1));
		_exit(0);
	}
	close(registration);
	took = milliseconds();
	end.fd = ended[0];
	poll(&end, 1, 5000);
	took = milliseconds() - took;
	must(ioctl(uffd, UFFDIO_ZEROPAGE, &zero));
	pthread_join(writer, NULL);
	must(waitpid(child, NULL, 0));
	return took;
}

static off_t available(void)
{
	FILE *f = fopen("/proc/meminfo", "r");
	char line[128];
	long kib = 0;

	while (f && !kib && fgets(line, sizeof(line), f))
		sscanf(line, "MemAvailable: %ld", &kib);
	if (f)
		fclose(f);
	return kib * 1024;
}

/* The host can back each of two, but not both: the second is refused until the first ends. */
static void beside_another(void)
{
	const off_t most = available() / 10 * 8 / PAGE * PAGE;
	int fds[2], first;

	for (int i = 0; i < 2; i++) {
		fds[i] = memfd(0, 0);
		must(ftruncate(fds[i], most));
		must(fcntl(fds[i], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	}
	policy = FASTIOVD_TOUCHMAP;
	first = must(ram_register(fds[0], 0));
	policy = FASTIOVD_PAGECACHE;
	expect("on touch, beside another, more than the host has",
	       request(sizeof(struct fastiovd_register), FASTIOVD_TOUCHMAP, fds[1], 0), -ENOMEM);
	close(first);
	expect("the same, after that one has ended",
	       request(sizeof(struct fastiovd_register), FASTIOVD_TOUCHMAP, fds[1], 0), 0);
	close(fds[0]);
	close(fds[1]);
}

int main(void)
{
	const uint32_t size = sizeof(struct fastiovd_register), fixed = F_SEAL_SHRINK | F_SEAL_GROW;
	struct fastiovd_stat stat = { .size = sizeof(stat) };
	int sealed, open_ended, huge, touched, pipes[2], reader, first, second;
	double took;
	char path[64];

	dev = open("/dev/fastiovd", O_RDWR | O_CLOEXEC);
	if (dev < 0)
		ksft_exit_skip("no /dev/fastiovd\n");
	ksft_print_header();
	ksft_set_plan(40);

	sealed = memfd(0, F_SEAL_SHRINK);
	open_ended = memfd(0, 0);
	huge = memfd(MFD_HUGETLB, fixed);
	must(pipe(pipes));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", sealed);
	reader = must(open(path, O_RDONLY));

	expect("a sealed memfd", request(size, FASTIOVD_PAGECACHE, sealed, 0), 0);
	expect("the same again", request(size, FASTIOVD_PAGECACHE, sealed, FASTIOVD_BACKGROUND), 0);
	expect("a size of 0", request(0, FASTIOVD_PAGECACHE, sealed, 0), -EINVAL);
	expect("a larger size", request(size + 8, FASTIOVD_PAGECACHE, sealed, 0), -EINVAL);
	expect("policy 0", request(size, 0, sealed, 0), -EINVAL);
	expect("an unknown policy", request(size, 99, sealed, 0), -EINVAL);
	expect("an unknown flag", request(size, FASTIOVD_PAGECACHE, sealed, 1u << 31), -EINVAL);
	expect("no descriptor", request(size, FASTIOVD_PAGECACHE, -1, 0), -EBADF);
	expect("a pipe", request(size, FASTIOVD_PAGECACHE, pipes[0], 0), -EACCES);
	expect("a device", request(size, FASTIOVD_PAGECACHE,
				   must(open("/dev/zero", O_RDWR)), 0), -EINVAL);
	expect("the device itself", request(size, FASTIOVD_PAGECACHE, dev, 0), -EINVAL);
	expect("a memfd that may shrink",
	       request(size, FASTIOVD_PAGECACHE, open_ended, 0), -EINVAL);
	expect("a memfd of huge pages", request(size, FASTIOVD_PAGECACHE, huge, 0), 0);
	expect("a memfd of huge pages that may shrink",
	       request(size, FASTIOVD_PAGECACHE, memfd(MFD_HUGETLB, 0), 0), -EINVAL);
	expect("a memfd of 1 GiB pages",
	       request(size, FASTIOVD_PAGECACHE,
		       must(memfd_create("test", MFD_ALLOW_SEALING | MFD_HUGETLB |
					 30U << 26 /* MFD_HUGE_1GB */)), 0), -EINVAL);
	expect("a memfd open for reading", request(size, FASTIOVD_PAGECACHE, reader, 0), -EACCES);
	expect("an unmapped argument",
	       ioctl(dev, FASTIOVD_REGISTER, (void *)8) < 0 ? -errno : 0, -EFAULT);
	expect("an unknown ioctl", ioctl(dev, _IO(0xf1, 0x77), 0) < 0 ? -errno : 0, -ENOTTY);
	expect("a statistic of the device",
	       ioctl(dev, FASTIOVD_STAT, &stat) < 0 ? -errno : 0, -ENOTTY);

	expect("on touch, with a background",
	       request(size, FASTIOVD_TOUCHMAP, memfd(0, fixed), FASTIOVD_BACKGROUND), -EINVAL);
	expect("on touch, a memfd that may shrink",
	       request(size, FASTIOVD_TOUCHMAP, memfd(0, F_SEAL_GROW), 0), -EINVAL);
	expect("on touch, a memfd that may grow",
	       request(size, FASTIOVD_TOUCHMAP, sealed, 0), -EINVAL);
	expect("on touch, a memfd of huge pages",
	       request(size, FASTIOVD_TOUCHMAP, huge, 0), -EINVAL);
	touched = memfd(0, fixed);
	must(pwrite(touched, "x", 1, 0));
	expect("on touch, a memfd that is not empty",
	       request(size, FASTIOVD_TOUCHMAP, touched, 0), -EINVAL);
	touched = memfd(0, 0);
	must(ftruncate(touched, (off_t)sysconf(_SC_PHYS_PAGES) * PAGE));
	must(fcntl(touched, F_ADD_SEALS, fixed));
	expect("on touch, as much as the host has",
	       request(size, FASTIOVD_TOUCHMAP, touched, 0), -ENOMEM);
	beside_another();
	touched = memfd(0, fixed);
	expect("on touch", request(size, FASTIOVD_TOUCHMAP, touched, 0), 0);
	expect("the same again, which it stays",
	       request(size, FASTIOVD_PAGECACHE, touched, 0), -EBUSY);
	expect("a hole in it, after the registration",
	       fallocate(touched, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) < 0 ?
	       -errno : 0, -EBUSY);

	expect("a table, which is not allowed", request(size, FASTIOVD_TABLE, sealed, 0), -EPERM);

	first = must(ram_register(sealed, 0));
	second = ram_register(sealed, 0) < 0 ? -errno : 0;
	expect("a second registration", second, -EBUSY);
	stat.size = 8;
	expect("a statistic of 8 bytes",
	       ioctl(first, FASTIOVD_STAT, &stat) < 0 ? -errno : 0, -EINVAL);
	stat.size = sizeof(stat);
	expect("a statistic", ioctl(first, FASTIOVD_STAT, &stat) < 0 ? -errno : 0, 0);
	ksft_test_result(stat.bytes == 2 * MiB, "its size\n");
	expect("an instant range, of no table",
	       ioctl(first, FASTIOVD_INSTANT, &(struct fastiovd_range){ 0, PAGE }) < 0 ?
	       -errno : 0, -EINVAL);
	expect("a punched hole",
	       fallocate(sealed, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) < 0 ?
	       -errno : 0, -EBUSY);
	close(first);
	first = must(ram_register(huge, 0));
	expect("a hole in huge pages",
	       fallocate(huge, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * MiB) < 0 ?
	       -errno : 0, -EBUSY);
	close(first);
	expect("a registration after the first ended",
	       request(size, FASTIOVD_PAGECACHE, sealed, 0), 0);
	took = end_beside_a_writer(sealed);
	ksft_test_result(took < 4000, "it ends while a process that writes to the memfd waits\n");
	ksft_print_msg("that took %.0f ms\n", took);
	ksft_finished();
}
