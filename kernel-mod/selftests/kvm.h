/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A guest with one virtual processor in real mode, in memory that the test gives it. And an
 * interrupt for a guest of Xen, which a worker of the kernel writes down in a page of the test's.
 */
#ifndef SELFTEST_KVM_H
#define SELFTEST_KVM_H

#include <linux/kvm.h>

#include "vfio.h"

#include <sys/eventfd.h>

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

/* An event channel of Xen for a guest that never runs. */
struct channel {
	int kvm, vm, cpu;
	struct kvm_irqfd interrupt;
	void *page;
};

static inline struct channel channel_new(void)
{
	struct channel c = { .kvm = must(open("/dev/kvm", O_RDWR)),
		.page = must(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				  -1, 0)),
		.interrupt = { .fd = must(eventfd(0, 0)), .gsi = 30 } };
	struct { struct kvm_irq_routing head; struct kvm_irq_routing_entry entry; } route = {
		{ .nr = 1 }, { .gsi = c.interrupt.gsi, .type = KVM_IRQ_ROUTING_XEN_EVTCHN,
		.u.xen_evtchn = { 1, 0, KVM_IRQ_ROUTING_XEN_EVTCHN_PRIO_2LEVEL } } };
	struct kvm_xen_hvm_attr shared = { .type = KVM_XEN_ATTR_TYPE_SHARED_INFO_HVA,
		.u.shared_info.hva = (uintptr_t)c.page };

	c.vm = must(ioctl(c.kvm, KVM_CREATE_VM, 0));
	must(ioctl(c.vm, KVM_CREATE_IRQCHIP));
	c.cpu = must(ioctl(c.vm, KVM_CREATE_VCPU, 0));
	must(ioctl(c.vm, KVM_XEN_HVM_SET_ATTR, &shared));
	must(ioctl(c.vm, KVM_SET_GSI_ROUTING, &route));
	must(ioctl(c.vm, KVM_IRQFD, &c.interrupt));
	return c;
}

/*
 * Takes the interrupt away. That waits for its worker, and for those of all interrupts that are
 * taken away on the host, and cannot be killed.
 */
static inline void channel_take(struct channel *c)
{
	c->interrupt.flags = KVM_IRQFD_FLAG_DEASSIGN;
	must(ioctl(c->vm, KVM_IRQFD, &c->interrupt));
}

static inline void channel_end(struct channel *c)
{
	close(c->interrupt.fd);
	close(c->cpu);
	close(c->vm);
	close(c->kvm);
	munmap(c->page, PAGE);
}

#endif
