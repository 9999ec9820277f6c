// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What two vCPUs see of each other, to test QEMU with: process 1 of a guest. How it is run, with
 * a kernel that needs no module to show its console, as Debian's:
 *
 *	cc -O1 -static -pthread -o init vcpus.c && echo init | cpio -o -H newc > initrd
 *	$(fastiov image build qemu-emulator)/usr/bin/qemu-system-x86_64 -machine q35 \
 *		-accel tcg,thread=multi -smp 2 -cpu EPYC -m 512 -nographic -nodefaults \
 *		-serial stdio -no-reboot -kernel /boot/vmlinuz-VERSION -initrd initrd \
 *		-append 'console=ttyS0 quiet panic=-1 mitigations=off nokaslr seconds=8'
 *
 * Debian's QEMU is run with the same options. Each line but the last says how much went wrong, of
 * how much was tried. The last says how often the kernel switched the static key, or why it did
 * not. No kernel has panicked in that part yet, in any QEMU: it shows that Linux changes its code
 * while both vCPUs run it, and not that nothing is missed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define CF 0x1
#define ZF 0x40
#define DF 0x400

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static char *two_pages(void)
{
	char *two = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	two[0] = 1;
	return two;
}

/* Flags with which an instruction stores across two pages, of which the second is not there. */
#define FLAGS_AFTER(insn)                                                  \
	({                                                                 \
		char *two = two_pages();                                   \
		uint64_t after;                                            \
		uint32_t value = 7;                                        \
		asm volatile("xorl %%ecx, %%ecx; stc; std;" insn           \
			     " %1, (%2); pushfq; cld; popq %0"             \
			     : "=r"(after), "+r"(value)                    \
			     : "r"(two + PAGE - 2)                         \
			     : "rcx", "memory", "cc");                     \
		munmap(two, 2 * PAGE);                                     \
		after;                                                     \
	})

#define FAULTS 500

struct lost {
	int cf, zf, df;
};

static void count(struct lost *lost, uint64_t after)
{
	lost->cf += !(after & CF);
	lost->zf += !(after & ZF);
	lost->df += !(after & DF);
}

static void print(const char *insn, struct lost lost)
{
	printf("lost in faults of %s: CF %d, ZF %d, DF %d of %d\n", insn, lost.cf, lost.zf, lost.df,
	       FAULTS);
}

/* An XCHG across two pages is executed while the other vCPUs wait, and a MOV is not. */
static void flags(void)
{
	struct lost xchg = {0}, mov = {0};

	for (int i = 0; i < FAULTS; i++) {
		count(&xchg, FLAGS_AFTER("xchgl"));
		count(&mov, FLAGS_AFTER("movl"));
	}
	print("XCHG", xchg);
	print("MOV", mov);
}

static volatile uint32_t asked, answered, returned, stop;
static uint32_t (*code)(void);

static void *executor(void *unused)
{
	pin(1);
	while (!stop) {
		uint32_t question = asked;

		if (question != answered) {
			uint32_t a = 0, c = 0;

			asm volatile("cpuid" : "+a"(a), "+c"(c) : : "rbx", "rdx", "memory");
			returned = code();
			__sync_synchronize();
			answered = question;
		}
		code();
	}
	return unused;
}

enum how { STORE, STORE_TO_NEW_MAPPING, ATOMIC_EXCHANGE };

/* One vCPU changes what a function returns, in one way, and the other calls it all the time. */
static void stale(const char *name, enum how how, double seconds)
{
	enum { MOV_TO_EAX = 63, NUMBER = 64, RET = 68 };
	int fd = memfd_create("code", 0);
	uint8_t *run, *write;
	uint32_t changes = 0, missed = 0;
	pthread_t thread;
	double end;

	if (ftruncate(fd, PAGE))
		abort();
	run = mmap(0, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED, fd, 0);
	write = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memset(run, 0x90, MOV_TO_EAX); /* NOPs, so that it takes a while to translate */
	run[MOV_TO_EAX] = 0xb8;
	run[RET] = 0xc3;
	code = (void *)run;
	asked = answered = stop = 0;
	pthread_create(&thread, 0, executor, 0);
	pin(0);
	for (end = now() + seconds; now() < end;) {
		volatile uint32_t *number = (void *)(write + NUMBER);

		changes++;
		if (how == STORE_TO_NEW_MAPPING)
			madvise(write, PAGE, MADV_DONTNEED);
		if (how == ATOMIC_EXCHANGE)
			__atomic_exchange_n(number, changes, __ATOMIC_SEQ_CST);
		else
			*number = changes;
		__sync_synchronize();
		asked++;
		while (answered != asked)
			;
		missed += returned != changes;
	}
	stop = 1;
	pthread_join(thread, 0);
	printf("not seen by who executes it, of %s: %u of %u\n", name, missed, changes);
	munmap(run, PAGE);
	munmap(write, PAGE);
	close(fd);
}

static void *yielder(void *cpu)
{
	pin((long)cpu);
	while (!stop)
		sched_yield();
	return 0;
}

/* The kernel changes its scheduler's code while both vCPUs run it. */
static void static_key(double seconds)
{
	int fd = open("/proc/sys/kernel/sched_schedstats", O_WRONLY), times = 0, error = 0;
	double end = now() + seconds;
	pthread_t threads[4];

	stop = 0;
	for (long i = 0; i < 4; i++)
		pthread_create(&threads[i], 0, yielder, (void *)(i % 2));
	while (!error && now() < end) {
		if (pwrite(fd, times % 2 ? "0" : "1", 1, 0) == 1)
			times++;
		else
			error = errno;
	}
	stop = 1;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], 0);
	printf("static key switched %d times%s%s\n", times, error ? ", and then: " : "",
	       error ? strerror(error) : "");
}

int main(void)
{
	double seconds = getenv("seconds") ? atof(getenv("seconds")) : 8;

	mkdir("/proc", 0755);
	mkdir("/dev", 0755);
	mount("proc", "/proc", "proc", 0, 0);
	mount("dev", "/dev", "devtmpfs", 0, 0);
	for (int fd = 0; fd < 3; fd++)
		dup2(open("/dev/console", O_RDWR), fd);
	setvbuf(stdout, 0, _IONBF, 0);
	flags();
	stale("stores", STORE, seconds);
	stale("stores to a new mapping", STORE_TO_NEW_MAPPING, seconds);
	stale("atomic exchanges", ATOMIC_EXCHANGE, seconds);
	static_key(seconds);
	reboot(RB_POWER_OFF);
}
