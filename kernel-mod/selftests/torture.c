// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many users of one memory at once: processors that write and check what they wrote,
 * a second mapping that reads, read(), requests to zero, the background, DMA mappings
 * that come and go, registrations that come and go, and a device that may or may not
 * master the bus. A page holds zeros or what its one writer wrote last; anything else,
 * the poison above all, is a failure. So is a device that finds something else in the
 * end, by a mapping that was made meanwhile. The control has all that with FASTIOVD_TABLE
 * for a moment, and finds the poison.
 *
 * SEED and SECONDS in the environment; the seed is printed.
 */
#include "edu.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#define SIZE (32 * MiB)
#define PAGES (SIZE / PAGE)
#define WRITERS 3

static struct ram ram;
static struct vfio vfio;
static atomic_bool over, settled;	/* settled: mappings do not change any more */
static atomic_long wrong, poisoned, touches, mappings, registrations, masters_of_the_bus;
/* by the page's writer alone: what its words hold, 0 for nothing yet */
static uint32_t written[PAGES];
static const uint8_t *second;	/* another mapping of the same memory */

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void check(const uint8_t *page, uint32_t want, const char *who)
{
	const uint32_t *words = (const uint32_t *)page;

	for (size_t i = 0; i < PAGE / 4; i += 16)
		if (words[i] != want) {
			atomic_fetch_add(&poisoned, words[i] == 0x01010101u * POISON);
			if (!atomic_fetch_add(&wrong, 1) && policy != FASTIOVD_TABLE)
				ksft_print_msg("%s found %08x, not %08x\n", who, words[i], want);
			return;
		}
}

/*
 * Writer i owns the pages whose number is i modulo WRITERS + 1; the last share has no owner and
 * stays zero.
 */
static void *writer(void *arg)
{
	uint64_t state = (uintptr_t)arg * 0x9e3779b97f4a7c15 + 1;
	uint32_t i = (uintptr_t)arg % (WRITERS + 1);

	while (!over) {
		uint32_t page = next(&state) % (PAGES / (WRITERS + 1)) * (WRITERS + 1) + i;
		uint8_t *at = ram.at + page * PAGE;

		check(at, written[page], "a writer");
		if (next(&state) % 2) {
			uint32_t value = next(&state) | 1;

			for (size_t j = 0; j < PAGE / 4; j++)
				((uint32_t *)at)[j] = value;
			written[page] = value;
		}
		touches++;
	}
	return NULL;
}

static void *reader(void *arg)
{
	uint64_t state = (uintptr_t)arg + 1;
	uint8_t copy[PAGE];

	while (!over) {
		uint32_t page = next(&state) % (PAGES / (WRITERS + 1)) * (WRITERS + 1) + WRITERS;

		if (next(&state) % 2) {
			check(second + page * PAGE, 0, "a second mapping");
		} else {
			must(pread(ram.fd, copy, PAGE, page * PAGE));
			check(copy, 0, "read()");
		}
		touches++;
	}
	return NULL;
}

static void *mapper(void *arg)
{
	uint64_t state = (uintptr_t)arg + 1;

	must(vfio_unmap(&vfio, 0, SIZE));
	while (!settled) {
		size_t size = (next(&state) % (SIZE / MiB) + 1) * MiB;
		size_t at = next(&state) % ((SIZE - size) / MiB + 1) * MiB;

		if (vfio_map(&vfio, ram.at + at, at, size)) {
			if (!atomic_fetch_add(&wrong, 1))
				ksft_print_msg("mapping %zu MiB at %zu: %s\n", size / MiB, at / MiB,
					       strerror(errno));
			break;
		}
		mappings++;
		usleep(next(&state) % 3000);
		must(vfio_unmap(&vfio, at, size));
	}
	must(vfio_map(&vfio, ram.at, 0, SIZE));
	return NULL;
}

/* The device copies written pages to one without a writer: they arrive as they were written. */
static void check_by_device(uint64_t state)
{
	const size_t copy = WRITERS * PAGE;

	vfio_open(&vfio, device_under_test());
	vfio_set_command(&vfio, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	for (int i = 0; i < 8; i++) {
		uint32_t page = next(&state) % (PAGES / (WRITERS + 1)) * (WRITERS + 1) +
			i % WRITERS;

		check(ram.at + copy, i ? 0x11111111 : 0, "the processor");
		(void)*(volatile uint8_t *)(ram.at + page * PAGE);
		edu_copy(&vfio, page * PAGE, EDU_BUFFER, false);
		edu_copy(&vfio, EDU_BUFFER, copy, true);
		check(ram.at + copy, written[page], "the device");
		memset(ram.at + copy, 0x11, PAGE);
	}
}

static void *registrar(void *arg)
{
	uint64_t state = (uintptr_t)arg + 1;

	close(ram.registration);
	ram.registration = -1;
	while (!over) {
		int registration = ram_register(ram.fd,
						next(&state) % 2 ? FASTIOVD_BACKGROUND : 0);

		if (registration < 0 && errno == EBUSY)
			continue;	/* a mapping that is under way keeps the one before */
		must(registration);
		registrations++;
		usleep(next(&state) % 20000);
		if (next(&state) % 2)
			must(ioctl(registration, FASTIOVD_ZERO));
		close(registration);
	}
	return NULL;
}

/* Once its device masters the bus, a container defers nothing any more; a new one replaces it. */
static void *master(void *arg)
{
	const char *bdf = device_under_test();
	uint64_t state = (uintptr_t)arg + 1;

	do {
		struct ram own = ram_new(8 * MiB, next(&state) % 2);
		struct vfio v = vfio_attach(bdf);

		own.registration = must(ram_register(own.fd, policy == FASTIOVD_PAGECACHE &&
						     next(&state) % 2 ? FASTIOVD_BACKGROUND : 0));
		must(vfio_map(&v, own.at, 0, own.size));
		vfio_open(&v, bdf);
		vfio_set_command(&v, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
		if (next(&state) % 2)
			(void)*(volatile uint32_t *)v.bar;	/* waits for the memory */
		vfio_close(&v);
		ram_poison(&own);
		masters_of_the_bus++;
	} while (!over);
	return NULL;
}

static const struct { uint32_t policy; enum pages pages; } arrangements[] = {
	{ FASTIOVD_TABLE, SMALL }, { FASTIOVD_TABLE, HUGE }, { FASTIOVD_TABLE, MIDDLE },
	{ FASTIOVD_TABLE, RESERVED },
	{ FASTIOVD_PAGECACHE, SMALL }, { FASTIOVD_PAGECACHE, HUGE }, { FASTIOVD_PAGECACHE, MIDDLE },
	{ FASTIOVD_PAGECACHE, RESERVED },
	{ FASTIOVD_TOUCHMAP, SMALL }, { FASTIOVD_TOUCHMAP, HUGE }, { FASTIOVD_TOUCHMAP, MIDDLE },
};

/*
 * Everybody uses a new memory at once. A device has had all of it before: else writers would
 * touch each of a few huge pages before the first is mapped.
 */
static void together(enum pages pages, uint64_t seed, int seconds)
{
	void *(*const bodies[])(void *) = { reader, mapper, registrar };
	/* with others than the page cache it is registered once, and for good */
	size_t last = policy == FASTIOVD_PAGECACHE ? 3 : 2;
	pthread_t threads[WRITERS + 3];
	int n = 0;

	atomic_store(&over, false);
	atomic_store(&settled, false);
	memset(written, 0, sizeof(written));
	poison_free_memory();
	ram = ram_new(SIZE, pages);
	ram.registration = must(ram_register(ram.fd, 0));
	second = must(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, ram.fd, 0));
	vfio = vfio_attach(device_under_test());
	must(vfio_map(&vfio, ram.at, 0, SIZE));
	for (uintptr_t i = 0; i < WRITERS; i++)
		pthread_create(&threads[n++], NULL, writer, (void *)(seed * (WRITERS + 1) + i));
	for (size_t i = 0; i < last; i++)
		pthread_create(&threads[n++], NULL, bodies[i], (void *)(seed + i));
	sleep(seconds);
	atomic_store(&settled, true);
	usleep(200000);
	atomic_store(&over, true);
	while (n)
		pthread_join(threads[--n], NULL);
}

static void apart(void)
{
	vfio_close(&vfio);
	munmap((void *)second, SIZE);
	ram_poison(&ram);
}

/* The first attempt does not poison all free memory. */
static void control(enum pages pages, uint64_t seed)
{
	poisoned = 0;
	for (int tries = 0; tries < 20 && !poisoned; tries++) {
		together(pages, seed, 1);
		apart();
	}
	ksft_test_result(poisoned, "control: with a table old bytes are found, %s\n",
			 pages_are[pages]);
}

static void torture(enum pages pages, uint64_t seed, int seconds)
{
	pthread_t thread;

	wrong = touches = mappings = registrations = masters_of_the_bus = 0;
	together(pages, seed, seconds);
	check_by_device(seed);
	apart();
	atomic_store(&over, false);
	pthread_create(&thread, NULL, master, (void *)seed);
	sleep(seconds / 4);
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	ksft_test_result(!wrong && touches && mappings && masters_of_the_bus &&
			 (registrations || policy != FASTIOVD_PAGECACHE),
			 "seed %llu, %s%s: %ld wrong of %ld touches, %ld DMA mappings, "
			 "%ld registrations, %ld masters of the bus\n",
			 (unsigned long long)seed, pages_are[pages],
			 policy == FASTIOVD_TOUCHMAP ? " on touch" : "",
			 wrong, touches, mappings, registrations, masters_of_the_bus);
}

int main(void)
{
	uint64_t seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 0) : (uint64_t)time(NULL);
	int seconds = getenv("SECONDS") ? atoi(getenv("SECONDS")) : 12;
	const size_t kinds = sizeof(arrangements) / sizeof(*arrangements);

	device_under_test();
	ksft_print_header();
	ksft_set_plan(kinds);
	allow_table(true);
	for (size_t kind = 0; kind < kinds; kind++) {
		policy = arrangements[kind].policy;
		if (policy == FASTIOVD_TABLE)
			control(arrangements[kind].pages, seed);
		else
			torture(arrangements[kind].pages, seed, seconds);
	}
	allow_table(false);
	ksft_finished();
}
