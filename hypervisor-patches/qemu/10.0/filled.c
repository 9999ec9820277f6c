// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What it takes to fill pages that were code with something else, and whether code that takes their
 * place runs: process 1 of a guest, run as vcpus.c is.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 512
#define ROUNDS 8
#define EACH 32 /* bytes of a function */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* Writes a function that returns value. */
static void emit(uint8_t *at, uint32_t value)
{
	*at = 0xb8; /* mov eax, value */
	memcpy(at + 1, &value, sizeof(value));
	at[5] = 0xc3; /* ret */
}

static uint32_t call(uint8_t *at) { return ((uint32_t(*)(void))at)(); }

/* Fills pages with functions, calls each, and then fills the pages with zeros, by bytes. */
static void fill(uint8_t *pages)
{
	double took = 0;
	uint32_t value = 0;
	int old = 0, calls = 0;

	for (int round = 0; round < ROUNDS; round++) {
		uint32_t first = value;

		for (int i = 0; i < PAGES * PAGE; i += EACH)
			emit(pages + i, value++);
		for (int i = 0; i < PAGES * PAGE; i += EACH, calls++)
			old += call(pages + i) != first + i / EACH;

		double begin = now();
		uint8_t *to = pages;
		uint64_t n = PAGES * PAGE;

		asm volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(0) : "memory");
		took += now() - begin;
	}
	printf("a page of %d functions filled with zeros: %.1f us; %d of %d functions were old\n",
	       PAGE / EACH, took / ROUNDS / PAGES, old, calls);
}

/* What calls code of a page and stores beside it in turn, as some interpreters do. */
static void beside(uint8_t *page, int stores)
{
	const int calls = 20000;
	double begin;

	emit(page, 7);
	begin = now();
	for (int i = 0; i < calls; i++) {
		for (int k = 0; k < stores; k++)
			((volatile uint32_t *)(page + PAGE / 2))[k] = i;
		call(page);
	}
	printf("%d stores beside code, and its call: %.2f us\n", stores, (now() - begin) / calls);
}

int main(void)
{
	uint8_t *pages = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	mkdir("/dev", 0755);
	mount("dev", "/dev", "devtmpfs", 0, 0);
	for (int fd = 0; fd < 3; fd++)
		dup2(open("/dev/console", O_RDWR), fd);
	setvbuf(stdout, 0, _IONBF, 0);
	fill(pages);
	beside(pages, 1);
	beside(pages, 10);
	beside(pages, 100);
	reboot(RB_POWER_OFF);
}
