// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What it takes to fill pages that were code with something else, and whether code that takes their
 * place runs: process 1 of a guest, run as vcpus.c is, also with -smp 1.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
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
#define HUGE (PAGE * PAGES)
#define DATA (PAGE / 2) /* of a page with code before it */

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

static void zero(uint8_t *to, uint64_t n)
{
	asm volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(0) : "memory");
}

/* Fills pages with functions, calls each, and then fills the pages with zeros, by bytes. */
static void fill(uint8_t *pages)
{
	const int each = 32;
	double took = 0;
	uint32_t value = 0;
	int old = 0, calls = 0;

	for (int round = 0; round < ROUNDS; round++) {
		uint32_t first = value;

		for (int i = 0; i < HUGE; i += each)
			emit(pages + i, value++);
		for (int i = 0; i < HUGE; i += each, calls++)
			old += call(pages + i) != first + i / each;

		double begin = now();

		zero(pages, HUGE);
		took += now() - begin;
	}
	printf("a page of %d functions filled with zeros: %.1f us; %d of %d functions were old\n",
	       PAGE / each, took / ROUNDS / PAGES, old, calls);
}

/*
 * Replaces the functions of one page and calls them before anything else takes their slots of the
 * jump cache: each by itself, and all of a page that was filled with zeros in between.
 */
static void replace(uint8_t *page, int filled)
{
	const int each = 256, rounds = 2000;
	int old = 0, calls = 0;

	for (uint32_t round = 0; round < rounds; round++) {
		if (filled)
			zero(page, PAGE);
		for (int i = 0; i < PAGE; i += each) {
			emit(page + i, round);
			if (!filled)
				old += call(page + i) != round, calls++;
		}
		for (int i = 0; filled && i < PAGE; i += each, calls++)
			old += call(page + i) != round;
	}
	printf("functions replaced %s: %d of %d calls ran an old one\n",
	       filled ? "after their page was filled" : "one by one", old, calls);
}

/* Maps a huge page of code in the place of another one, which the kernel flushes by one INVLPG. */
static void remap(void)
{
	const int rounds = 1000, at = HUGE / 2;
	int fd = memfd_create("huge", MFD_HUGETLB), old = 0;
	uint8_t *place = (uint8_t *)0x100000000000;
	int prot = PROT_READ | PROT_WRITE | PROT_EXEC;

	for (int i = 0; i < 2; i++) {
		if (ftruncate(fd, 2 * HUGE) ||
		    mmap(place, HUGE, prot, MAP_SHARED | MAP_FIXED, fd, i * HUGE) != place) {
			perror("a huge page");
			return;
		}
		emit(place + at, i);
	}
	for (uint32_t round = 0; round < rounds; round++) {
		mmap(place, HUGE, prot, MAP_SHARED | MAP_FIXED, fd, round % 2 * HUGE);
		old += call(place + at) != round % 2;
	}
	printf("code of a huge page in the place of another: %d of %d calls ran the old one\n", old,
	       rounds);
	munmap(place, HUGE);
	close(fd);
}

static uint8_t *put(uint8_t *at, const char *bytes, int n)
{
	memcpy(at, bytes, n);
	return at + n;
}

/*
 * Has code store 100 words to its own page in a row, then change the value that it returns: in the
 * same translation, or in the one to which it jumps, called first or last before.
 */
static void tail(uint8_t *page, int jumps, int first)
{
	const int rounds = 2000;
	uint8_t *at = page, *next;
	int old = 0;

	for (uint32_t k = 0; k < 100; k++) {
		uint32_t to = DATA + 4 * k;

		at = put(at, "\x89\xb7", 2); /* mov [rdi + to], esi */
		at = put(at, (char *)&to, sizeof(to));
	}
	at = put(at, "\x89\x35", 2); /* mov [rip + ...], esi: the value of the function below */
	at = put(at, jumps ? "\x06\0\0\0\xe9\0\0\0\0" : "\x01\0\0\0", jumps ? 9 : 4);
	next = at;
	emit(next, 0);
	for (uint32_t round = 1; round <= rounds; round++) {
		if (first)
			call(next);
		old += ((uint32_t(*)(uint8_t *, uint32_t))page)(page, round) != round;
		if (!first)
			call(next);
	}
	printf("code that fills its own page and changes %s: %d of %d calls ran the old one\n",
	       !jumps ? "itself" : first ? "what it jumps to" : "what it jumped to", old, rounds);
}

static volatile int stop;
static volatile uint32_t told;
static volatile long chained, old_chained;

/* Calls code that reads what was told, and then jumps to what returns the value of that. */
static void *chain(void *page)
{
	while (!stop) {
		uint64_t got = ((uint64_t(*)(volatile uint32_t *))page)(&told);

		old_chained += (uint32_t)got < got >> 32;
		chained++;
	}
	return NULL;
}

/* One vCPU runs two translations of a page that another one fills beside them, and then changes. */
static void cross(uint8_t *page)
{
	pthread_t thread;
	uint8_t *at, *value;
	long rounds = 0;

	told = 0;
	memset(page, 0x90, PAGE);			     /* nop */
	at = put(page, "\x53", 1) + 400;		     /* push rbx, and 400 times nop */
	at = put(at, "\x44\x8b\x07\x31\xc0\x0f\xa2\x5b", 8); /* r8d = [rdi]; cpuid; pop rbx */
	value = (uint8_t *)(((uintptr_t)at + 5 + 1 + 3) & ~3ul);     /* an aligned word */
	uint32_t over = value - 1 - (at + 5);

	at = put(put(at, "\xe9", 1), (char *)&over, sizeof(over));     /* jmp */
	put(value - 1, "\xb8\0\0\0\0\x49\xc1\xe0\x20\x4c\x09\xc0\xc3", 13); /* r8 << 32 | value */
	pthread_create(&thread, NULL, chain, page);
	for (double begin = now(); now() - begin < 10e6; rounds++) {
		zero(page + DATA, 128);
		__atomic_exchange_n((uint32_t *)value, told + 1, __ATOMIC_SEQ_CST);
		told++;
		for (long before = chained; chained < before + 2 && rounds % 8 == 0;)
			sched_yield();
	}
	stop = 1;
	pthread_join(thread, NULL);
	printf("code that another vCPU changes, %ld times: %ld of %ld calls ran the old one\n",
	       rounds, old_chained, chained);
}

/* What calls code of a page and stores beside it in turn, as some interpreters do. */
static void beside(uint8_t *page, int functions, int stores)
{
	const int calls = 5000, each = DATA / functions;
	double begin;

	for (int i = 0; i < functions; i++)
		emit(page + i * each, 7);
	begin = now();
	for (int i = 0; i < calls; i++) {
		for (int k = 0; k < stores; k++)
			((volatile uint32_t *)(page + DATA))[k] = i;
		for (int k = 0; k < functions; k++)
			call(page + k * each);
	}
	printf("%d stores beside code, and %d calls of it: %.2f us\n", stores, functions,
	       (now() - begin) / calls);
}

static void write_to(const char *path, const char *what)
{
	int fd = open(path, O_WRONLY);

	if (write(fd, what, strlen(what)) < 0)
		perror(path);
	close(fd);
}

int main(void)
{
	uint8_t *pages = mmap(0, HUGE, PROT_READ | PROT_WRITE | PROT_EXEC,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	mkdir("/dev", 0755);
	mkdir("/proc", 0755);
	mount("dev", "/dev", "devtmpfs", 0, 0);
	mount("proc", "/proc", "proc", 0, 0);
	for (int fd = 0; fd < 3; fd++)
		dup2(open("/dev/console", O_RDWR), fd);
	setvbuf(stdout, 0, _IONBF, 0);
	write_to("/proc/sys/vm/nr_hugepages", "2");
	fill(pages);
	replace(pages, 0);
	replace(pages, 1);
	remap();
	for (int jumps = 0; jumps < 2; jumps++)
		for (int first = 0; first < 2; first++)
			tail(pages + PAGE * (2 * jumps + first), jumps, first);
	if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
		cross(pages + 4 * PAGE);
	for (int functions = 1; functions <= 64; functions *= 64)
		for (int stores = 1; stores <= 100; stores *= 10)
			beside(pages + 5 * PAGE, functions, stores);
	reboot(RB_POWER_OFF);
}
