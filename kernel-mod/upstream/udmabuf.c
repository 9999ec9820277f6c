// SPDX-License-Identifier: GPL-2.0-only
/*
 * memfd_pin_folios() gives a driver folios that fallocate() has allocated and nobody has zeroed.
 * udmabuf lets user space map them.
 *
 *	gcc -O2 -Wall -Wextra -Werror -static -o udmabuf udmabuf.c && ./udmabuf
 *
 * Boot with init_on_alloc=0. It needs CONFIG_UDMABUF and access to /dev/udmabuf.
 *
 * Exits with 1 if it read a byte that is not zero, 0 if it read none, 4 if it cannot tell.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (32UL << 20)

/* Fills free memory as another process would: it is freed when the process ends. */
static void leave_a_secret(void)
{
	size_t size = (size_t)sysconf(_SC_AVPHYS_PAGES) * 4096 / 10 * 8;
	int status;
	pid_t child = fork();

	if (!child) {
		void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED)
			_exit(1);
		memset(p, 0xee, size);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0 || status)
		errx(4, "cannot fill memory");
}

int main(void)
{
	struct udmabuf_create create = { .flags = UDMABUF_FLAGS_CLOEXEC, .size = SIZE };
	const uint8_t *buffer;
	size_t leaked = 0, i;
	int memfd, udmabuf, fd;

	udmabuf = open("/dev/udmabuf", O_RDWR);
	if (udmabuf < 0)
		err(4, "/dev/udmabuf");
	leave_a_secret();

	memfd = memfd_create("file", MFD_ALLOW_SEALING);
	if (memfd < 0 || ftruncate(memfd, SIZE) || fallocate(memfd, 0, 0, SIZE) ||
	    fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK))
		err(4, "allocating a file");
	create.memfd = memfd;
	fd = ioctl(udmabuf, UDMABUF_CREATE, &create);
	if (fd < 0)
		err(4, "UDMABUF_CREATE");
	buffer = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	if (buffer == MAP_FAILED)
		err(4, "mapping the buffer");

	for (i = 0; i < SIZE; i++)
		leaked += buffer[i] != 0;
	printf("%zu of %lu bytes are of another process\n", leaked, SIZE);
	return leaked ? 1 : 0;
}
