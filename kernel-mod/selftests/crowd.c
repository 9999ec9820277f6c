// SPDX-License-Identifier: GPL-2.0-only
/*
 * One processor of a guest has the device held, and another touches a BAR at that moment: it waits.
 * It takes two processors of the host for that.
 */
#include "edu.h"
#include "kvm.h"

#define SIZE (512 * MiB)
#define ROUNDS 3
#define STORED 0x2000

/* A virtual processor writes to the BAR for ever. */
static void stores(struct vfio *v)
{
	static const uint8_t code[] = {
		0xb8, STORED & 0xff, STORED >> 8,	/* mov ax, STORED */
		0x8e, 0xd8,			/* mov ds, ax: the BAR's segment */
		0x66, 0xa3, EDU_SOURCE, 0,	/* mov [EDU_SOURCE], eax */
		0xeb, 0xfa,			/* jmp to that */
	};
	struct guest g = guest_new();
	uint8_t *memory = must(mmap(NULL, 0x10000, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

	memcpy(memory + PAGE, code, sizeof(code));
	guest_memory(&g, 0, memory, 0x10000);
	guest_memory(&g, 0x20000, (void *)v->bar, 0x10000);
	guest_run(&g, PAGE);
}

/* Each time the device is asked to master the bus, who asks zeroes 8 MiB: that is 64 times. */
static void crowd(const char *bdf)
{
	struct ram r = ram_new(SIZE, SMALL);
	struct vfio v;
	volatile uint32_t *source;
	pid_t asker, child;
	bool ran = true, stored;
	int asked = 0;

	r.registration = must(ram_register(r.fd, 0));
	v = vfio_attach(bdf);
	must(vfio_map(&v, r.at, 0, SIZE));
	vfio_open(&v, bdf);
	source = (volatile uint32_t *)(v.bar + EDU_SOURCE);
	vfio_set_command(&v, PCI_COMMAND_MEMORY);
	*source = 0;
	asker = vfio_hold(&v, bdf, -1);
	child = fork_bound();
	if (!child) {
		stores(&v);
		_exit(0);
	}
	for (; ran && !masters(bdf) && asked < 50; asked++) {
		vfio_set_command(&v, PCI_COMMAND_MEMORY);
		usleep(20000);
		vfio_set_command(&v, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
		usleep(20000);
		ran = !waitpid(child, NULL, WNOHANG);
	}
	kill(child, SIGKILL);
	kill(asker, SIGKILL);
	waitpid(child, NULL, 0);
	waitpid(asker, NULL, 0);
	vfio_set_command(&v, PCI_COMMAND_MEMORY);	/* this ends the hold */
	stored = (uint16_t)*source == STORED;
	ksft_test_result(ran && stored && asked > 10,
			 "held %d times while a virtual processor stores: %s, %s\n", asked,
			 ran ? "it waits" : "KVM fails",
			 stored ? "and stores between" : "and stores nothing");
	vfio_close(&v);
	ram_free(&r);
}

int main(void)
{
	const char *bdf = device_under_test();

	ksft_print_header();
	ksft_set_plan(ROUNDS);
	for (int i = 0; i < ROUNDS; i++)
		crowd(bdf);
	ksft_finished();
}
