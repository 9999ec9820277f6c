// SPDX-License-Identifier: GPL-2.0-only
/*
 * MADV_COLLAPSE maps a huge page of a memfd that fallocate() has allocated and nobody has zeroed.
 *
 *	gcc -O2 -Wall -Wextra -Werror -static -o collapse collapse.c && ./collapse
 *
 * Boot with init_on_alloc=0. Root is needed only to set shmem_enabled to "always"; where it is set
 * already, any user reads what other processes left in memory.
 *
 * Exits with 1 if it read a byte that is not zero, 0 if it read none, 4 if it cannot tell.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE (2UL << 20)
#define SIZE (32 * HUGE)
#define SHMEM_ENABLED "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

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

static void enable_huge_pages(void)
{
	char text[128] = "";
	int fd = open(SHMEM_ENABLED, O_RDONLY);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		err(4, SHMEM_ENABLED);
	close(fd);
	if (strstr(text, "[always]"))
		return;
	fd = open(SHMEM_ENABLED, O_WRONLY);
	if (fd < 0 || write(fd, "always", 6) < 0)
		err(4, "setting %s to always", SHMEM_ENABLED);
	close(fd);
}

int main(void)
{
	size_t collapsed = 0, leaked = 0, i;
	const uint8_t *file;
	uint8_t *room;
	int fd;

	enable_huge_pages();
	leave_a_secret();

	fd = memfd_create("file", 0);
	if (fd < 0 || ftruncate(fd, SIZE) || fallocate(fd, 0, 0, SIZE))
		err(4, "allocating a file");
	room = mmap(NULL, SIZE + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		err(4, "mmap");
	room = (uint8_t *)(((uintptr_t)room + HUGE - 1) & ~(HUGE - 1));
	if (mmap(room, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		err(4, "mapping the file");

	for (i = 0; i < SIZE; i += HUGE)
		collapsed += !madvise(room + i, HUGE, MADV_COLLAPSE);
	file = room;
	for (i = 0; i < SIZE; i++)
		leaked += file[i] != 0;
	printf("%zu of %lu huge pages collapsed; %zu of %lu bytes are of another process\n",
	       collapsed, SIZE / HUGE, leaked, SIZE);
	return leaked ? 1 : 0;
}
