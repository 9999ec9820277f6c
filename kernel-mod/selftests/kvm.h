/* SPDX-License-Identifier: GPL-2.0-only */
/* A guest with one virtual processor in real mode, in memory that the test gives it. */
#ifndef SELFTEST_KVM_H
#define SELFTEST_KVM_H

#include <linux/kvm.h>

#include "vfio.h"

struct guest {
	int kvm, vm, cpu, slots;
	struct kvm_run *run;
};

/* Without /dev/kvm the test fails. */
static inline struct guest guest_new(void)
{
	struct guest g = { .kvm = must(open("/dev/kvm", O_RDWR)) };
	struct kvm_sregs sregs;

	g.vm = must(ioctl(g.kvm, KVM_CREATE_VM, 0));
	g.cpu = must(ioctl(g.vm, KVM_CREATE_VCPU, 0));
	g.run = must(mmap(NULL, ioctl(g.kvm, KVM_GET_VCPU_MMAP_SIZE, 0), PROT_READ | PROT_WRITE,
			  MAP_SHARED, g.cpu, 0));
	must(ioctl(g.cpu, KVM_GET_SREGS, &sregs));
	sregs.cs.base = sregs.cs.selector = 0;
	must(ioctl(g.cpu, KVM_SET_SREGS, &sregs));
	return g;
}

static inline void guest_memory(struct guest *g, uint64_t physical, void *at, size_t size)
{
	struct kvm_userspace_memory_region m = {
		.slot = g->slots++, .guest_phys_addr = physical, .memory_size = size,
		.userspace_addr = (uintptr_t)at,
	};

	must(ioctl(g->vm, KVM_SET_USER_MEMORY_REGION, &m));
}

/* Runs from an address to the next exit, and returns its reason. */
static inline uint32_t guest_run(struct guest *g, uint64_t from)
{
	struct kvm_regs regs = { .rip = from, .rflags = 2 };

	must(ioctl(g->cpu, KVM_SET_REGS, &regs));
	must(ioctl(g->cpu, KVM_RUN, 0));
	return g->run->exit_reason;
}

static inline void guest_end(struct guest *g)
{
	munmap(g->run, ioctl(g->kvm, KVM_GET_VCPU_MMAP_SIZE, 0));
	close(g->cpu);
	close(g->vm);
	close(g->kvm);
}

#endif
