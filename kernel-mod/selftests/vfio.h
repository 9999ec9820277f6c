/* SPDX-License-Identifier: GPL-2.0-only */
/* The tests' access to a device through vfio, and to registered memory. A failure ends the test. */
#ifndef SELFTEST_VFIO_H
#define SELFTEST_VFIO_H

#define _GNU_SOURCE
#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/iommufd.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../fastiovd/include/uapi/linux/fastiovd.h"
#include "kselftest.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define MiB (1UL << 20)
#define PAGE 4096UL

#define must(x)                                                                   \
	({                                                                        \
		__typeof__(x) result = (x);                                       \
		if ((long)result == -1)                                           \
			ksft_exit_fail_msg("%s: %s\n", #x, strerror(errno));      \
		result;                                                           \
	})

/* Prints results at once, also through a pipe; and no child prints them again. */
static __attribute__((constructor)) void line_by_line(void)
{
	setlinebuf(stdout);
}

static inline double milliseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* A child that ends with this process: nobody else wakes one that is stopped. */
static inline pid_t fork_bound(void)
{
	pid_t child = must(fork());

	if (!child)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return child;
}

static inline void tell(const char *path, const char *text)
{
	int fd = must(open(path, O_WRONLY));

	if (write(fd, text, strlen(text)) < 0)
		ksft_exit_fail_msg("%s: \"%s\": %s\n", path, text, strerror(errno));
	close(fd);
}

static inline void set_parameter(const char *parameter, bool on)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/module/%s", parameter);
	tell(path, on ? "Y" : "N");
}

/* Whether devices other than VFs may have memory that is not zeroed: edu is no VF. */
static inline void defer_to_any(bool on)
{
	set_parameter("iommu/parameters/defer_to_any", on);
}

/*
 * A device of the environment, "0000:00:05.0", which is bound to vfio-pci. If it is no VF, it
 * passes for one from now on.
 */
static inline const char *device_named_by(const char *variable)
{
	const char *bdf = getenv(variable);
	char path[128];

	if (!bdf)
		ksft_exit_skip("%s names no device\n", variable);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/physfn", bdf);
	if (access(path, F_OK))
		defer_to_any(true);
	return bdf;
}

static inline const char *device_under_test(void)
{
	return device_named_by("FASTIOV_TEST_DEVICE");
}

/* A second device of the same kind, in a group of its own. */
static inline const char *second_device(void)
{
	return device_named_by("FASTIOV_TEST_DEVICE2");
}

/* Whether address spaces are iommufd's, not a container's: from the environment. */
static bool under_iommufd;

static __attribute__((constructor)) void choose_iommu(void)
{
	const char *iommu = getenv("FASTIOV_TEST_IOMMU");

	under_iommufd = iommu && !strcmp(iommu, "iommufd");
}

struct vfio {
	int container, group, device;	/* container: or the iommufd */
	uint32_t ioas, id;		/* of the address space and the device, in the iommufd */
	uint64_t config;	/* offset of the configuration space in device */
	volatile uint8_t *bar;	/* BAR 0 */
	size_t bar_size;
};

/* An address space of an iommufd. */
static inline uint32_t ioas_new(int iommufd)
{
	struct iommu_ioas_alloc alloc = { .size = sizeof(alloc) };

	must(ioctl(iommufd, IOMMU_IOAS_ALLOC, &alloc));
	return alloc.out_ioas_id;
}

/* Lets the device reach that address space, and no other. */
static inline void ioas_attach(int device, uint32_t ioas)
{
	struct vfio_device_attach_iommufd_pt attach = { .argsz = sizeof(attach), .pt_id = ioas };

	must(ioctl(device, VFIO_DEVICE_ATTACH_IOMMUFD_PT, &attach));
}

/* The device's own node. */
static inline int vfio_node(const char *bdf)
{
	char path[300];
	DIR *dir;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/vfio-dev", bdf);
	dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));)
		snprintf(path, sizeof(path), "/dev/vfio/devices/%s",
			 e->d_name[0] == '.' ? "" : e->d_name);
	closedir(dir);
	return must(open(path, O_RDWR));
}

/* The device in an iommufd, and in none of its address spaces yet. */
static inline struct vfio vfio_bind(const char *bdf, int iommufd)
{
	struct vfio v = { .container = iommufd, .group = -1, .device = vfio_node(bdf) };
	struct vfio_device_bind_iommufd bind = { .argsz = sizeof(bind), .iommufd = iommufd };

	must(ioctl(v.device, VFIO_DEVICE_BIND_IOMMUFD, &bind));
	v.id = bind.out_devid;
	return v;
}

/* The group of a device, which is not in an address space yet. */
static inline int vfio_group(const char *bdf)
{
	char link[256], target[256] = "", node[64];

	snprintf(link, sizeof(link), "/sys/bus/pci/devices/%s/iommu_group", bdf);
	must(readlink(link, target, sizeof(target) - 1));
	snprintf(node, sizeof(node), "/dev/vfio/%s", strrchr(target, '/') + 1);
	return must(open(node, O_RDWR));
}

/* An address space with the device in it; a container's device itself is not open. */
static inline struct vfio vfio_attach(const char *bdf)
{
	struct vfio v = { .device = -1 };

	if (under_iommufd) {
		v = vfio_bind(bdf, must(open("/dev/iommu", O_RDWR)));
		v.ioas = ioas_new(v.container);
		ioas_attach(v.device, v.ioas);
		return v;
	}
	v.container = must(open("/dev/vfio/vfio", O_RDWR));
	v.group = vfio_group(bdf);
	must(ioctl(v.group, VFIO_GROUP_SET_CONTAINER, &v.container));
	must(ioctl(v.container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU));
	return v;
}

/* A device in the address space of another. */
static inline struct vfio vfio_join(const struct vfio *with, const char *bdf)
{
	struct vfio v = { .container = must(dup(with->container)), .device = -1 };

	if (under_iommufd) {
		v = vfio_bind(bdf, v.container);
		v.ioas = with->ioas;
		ioas_attach(v.device, v.ioas);
		return v;
	}
	v.group = vfio_group(bdf);
	must(ioctl(v.group, VFIO_GROUP_SET_CONTAINER, &v.container));
	return v;
}

static inline void vfio_open(struct vfio *v, const char *bdf)
{
	struct vfio_region_info config = { .argsz = sizeof(config),
		.index = VFIO_PCI_CONFIG_REGION_INDEX };
	struct vfio_region_info bar = { .argsz = sizeof(bar), .index = VFIO_PCI_BAR0_REGION_INDEX };

	if (!under_iommufd)
		v->device = must(ioctl(v->group, VFIO_GROUP_GET_DEVICE_FD, bdf));
	must(ioctl(v->device, VFIO_DEVICE_GET_REGION_INFO, &config));
	must(ioctl(v->device, VFIO_DEVICE_GET_REGION_INFO, &bar));
	v->config = config.offset;
	v->bar_size = bar.size;
	v->bar = must(mmap(NULL, bar.size, PROT_READ | PROT_WRITE, MAP_SHARED,
			   v->device, bar.offset));
}

static inline void vfio_close(struct vfio *v)
{
	if (v->bar)
		munmap((void *)v->bar, v->bar_size);
	close(v->device);
	close(v->group);
	close(v->container);
}

static inline uint16_t vfio_command(struct vfio *v)
{
	uint16_t command;

	must(pread(v->device, &command, 2, v->config + PCI_COMMAND));
	return command;
}

static inline void vfio_set_command(struct vfio *v, uint16_t command)
{
	must(pwrite(v->device, &command, 2, v->config + PCI_COMMAND));
}

/* Whether the device masters the bus, whatever its user is told. */
static inline bool masters(const char *bdf)
{
	char path[128];
	uint16_t command;
	int fd;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/config", bdf);
	fd = must(open(path, O_RDONLY));
	must(pread(fd, &command, 2, PCI_COMMAND));
	close(fd);
	return command & PCI_COMMAND_MASTER;
}

/*
 * Has a process ask for the bus, which is stopped then, and its thread with it: the device is held
 * until the process is let go. It does not keep that descriptor.
 */
static inline pid_t vfio_hold(struct vfio *v, const char *bdf, int without)
{
	pid_t asker = fork_bound();

	if (!asker) {
		close(without);
		vfio_set_command(v, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
		raise(SIGSTOP);
		pause();
	}
	must(waitpid(asker, NULL, WUNTRACED));
	if (masters(bdf) || !(vfio_command(v) & PCI_COMMAND_MASTER))
		ksft_exit_fail_msg("the device is not held\n");
	return asker;
}

/* The process goes on until it is killed. */
static inline void vfio_let_go(pid_t asker)
{
	kill(asker, SIGCONT);
}

static inline int vfio_map(struct vfio *v, void *at, uint64_t iova, size_t size)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map), .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (uintptr_t)at, .iova = iova, .size = size,
	};
	struct iommu_ioas_map ioas_map = {
		.size = sizeof(ioas_map), .flags = IOMMU_IOAS_MAP_FIXED_IOVA |
		IOMMU_IOAS_MAP_READABLE | IOMMU_IOAS_MAP_WRITEABLE,
		.ioas_id = v->ioas, .user_va = (uintptr_t)at, .iova = iova, .length = size,
	};

	return under_iommufd ? ioctl(v->container, IOMMU_IOAS_MAP, &ioas_map) :
		ioctl(v->container, VFIO_IOMMU_MAP_DMA, &map);
}

static inline int vfio_unmap(struct vfio *v, uint64_t iova, size_t size)
{
	struct vfio_iommu_type1_dma_unmap unmap = { .argsz = sizeof(unmap), .iova = iova,
		.size = size };
	struct iommu_ioas_unmap ioas_unmap = { .size = sizeof(ioas_unmap), .ioas_id = v->ioas,
		.iova = iova, .length = size };

	return under_iommufd ? ioctl(v->container, IOMMU_IOAS_UNMAP, &ioas_unmap) :
		ioctl(v->container, VFIO_IOMMU_UNMAP_DMA, &unmap);
}

/* What a memory is made of; of huge pages the kernel may have none left. */
enum pages { SMALL, HUGE, MIDDLE, RESERVED };
static const char *const pages_are[] = { "small pages", "huge pages", "64 KiB pages",
	"hugetlbfs pages" };
static const size_t folio_size[] = { PAGE, 2 * MiB, 64 << 10, 2 * MiB };

/* A memfd that may be registered, and its mapping. */
struct ram {
	int fd, registration;
	uint8_t *at;
	size_t size;
};

static uint32_t policy = FASTIOVD_PAGECACHE;	/* of what is registered from now on */

static inline int ram_register(int memfd, uint32_t flags)
{
	struct fastiovd_register r = { .size = sizeof(r), .policy = policy, .memfd = memfd,
		.flags = flags };
	int dev = open("/dev/fastiovd", O_RDWR | O_CLOEXEC), fd;

	if (dev < 0 && errno == ENOENT)
		ksft_exit_skip("no /dev/fastiovd\n");
	if (dev < 0)
		return -1;
	fd = ioctl(dev, FASTIOVD_REGISTER, &r);
	close(dev);
	return fd;
}

#define POISON 0xee

/* Room in hugetlbfs for a memory and a copy of it; what its pages hold is the poison. */
static inline void reserve(size_t size)
{
	int fd = must(memfd_create("poison", MFD_CLOEXEC | MFD_HUGETLB));
	char pages[32];
	void *at;

	snprintf(pages, sizeof(pages), "%zu", 2 * size / (2 * MiB));
	must(ftruncate(fd, 2 * size));
	/* the one before is let go when its background thread has ended */
	for (int tries = 0; tries < 200; tries++) {
		tell("/proc/sys/vm/nr_hugepages", pages);
		at = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (at != MAP_FAILED)
			break;
		usleep(10000);
	}
	must(at);
	memset(at, POISON, 2 * size);
	munmap(at, 2 * size);
	close(fd);
}

static inline struct ram ram_new(size_t size, enum pages pages)
{
	const size_t whole = (size + 2 * MiB - 1) & ~(2 * MiB - 1);
	struct ram r = { .size = size, .registration = -1 };
	uint8_t *place;

	if (pages == RESERVED)
		reserve(size);
	r.fd = must(memfd_create("ram", MFD_CLOEXEC | MFD_ALLOW_SEALING |
				 (pages == RESERVED ? MFD_HUGETLB : 0)));
	must(ftruncate(r.fd, size));
	must(fcntl(r.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	/* Whole 2 MiB, so that nothing else is or was in its page tables */
	place = must(mmap(NULL, whole + 2 * MiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	place = (uint8_t *)(((uintptr_t)place + 2 * MiB - 1) & ~(2 * MiB - 1));
	r.at = must(mmap(place, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, r.fd, 0));
	if (pages != RESERVED)
		must(madvise(r.at, size, pages == SMALL ? MADV_NOHUGEPAGE : MADV_HUGEPAGE));
	tell("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled",
	     pages == MIDDLE ? "never" : "advise");
	tell("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/shmem_enabled",
	     pages == MIDDLE ? "advise" : "never");
	return r;
}

static inline void ram_free(struct ram *r)
{
	if (r->registration >= 0)
		close(r->registration);
	munmap(r->at, r->size);
	close(r->fd);
}

/*
 * Ends a memory and leaves the poison in its pages, which the next is likely to get. Its
 * registration ends first: at the end of that with a table, pages are zeroed.
 */
static inline void ram_poison(struct ram *r)
{
	if (r->registration >= 0)
		close(r->registration);
	r->registration = -1;
	memset(r->at, POISON, r->size);
	ram_free(r);
}

static inline struct fastiovd_stat ram_stat(struct ram *r)
{
	struct fastiovd_stat stat = { .size = sizeof(stat) };

	must(ioctl(r->registration, FASTIOVD_STAT, &stat));
	return stat;
}

/* Ends the test unless so much is there and none of it is zeroed: else it would try nothing. */
static inline void deferred(struct ram *r, size_t resident)
{
	struct fastiovd_stat stat = ram_stat(r);

	if (stat.zeroed || stat.resident != resident)
		ksft_exit_fail_msg("%llu of %zu MiB are there, and %llu are zeroed\n",
				   stat.resident / MiB, resident / MiB, stat.zeroed / MiB);
}

/* Whether the background has zeroed so much of it within 10 s. */
static inline bool background_zeroes(struct ram *r, size_t bytes)
{
	for (double end = milliseconds() + 10e3; milliseconds() < end;)
		if (ram_stat(r).background >= bytes)
			return true;
	return false;
}

/* Leaves the poison in most of the memory that is free afterwards. */
static inline void poison_free_memory(void)
{
	size_t size = sysconf(_SC_AVPHYS_PAGES) * PAGE / 10 * 9;
	pid_t child = must(fork());
	int status;

	if (!child) {
		uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED)
			_exit(1);
		memset(p, POISON, size);
		_exit(0);
	}
	must(waitpid(child, &status, 0));
	if (status)
		ksft_exit_fail_msg("%zu MiB could not be poisoned\n", size / MiB);
}

#define HOLD_MASTER "vfio_pci_core/parameters/hold_master"
#define ALLOW_TABLE "fastiovd/parameters/allow_table"

static pid_t tester;	/* the process that has set a parameter which is not safe */

static inline void be_safe(void)
{
	if (getpid() != tester)
		return;
	set_parameter(HOLD_MASTER, true);
	set_parameter(ALLOW_TABLE, false);
}

/* Sets such a parameter. A test that ends in the middle leaves nothing unsafe to the next one. */
static inline void set_unsafe(const char *parameter, bool on)
{
	if (!tester)
		atexit(be_safe);
	tester = getpid();
	set_parameter(parameter, on);
}

/* Whether no device masters the bus before its memory is zeroed. */
static inline void hold_master(bool on)
{
	set_unsafe(HOLD_MASTER, on);
}

/* Whether memory may be registered with the policy that is not safe. */
static inline void allow_table(bool on)
{
	set_unsafe(ALLOW_TABLE, on);
}

static inline size_t count_not(const volatile uint8_t *at, size_t size, uint8_t byte)
{
	size_t n = 0;

	for (size_t i = 0; i < size; i++)
		n += at[i] != byte;
	return n;
}

static inline long vmstat(const char *name)
{
	char line[128];
	FILE *f = fopen("/proc/vmstat", "r");
	long n = -1;

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ' ')
			n = atol(line + strlen(name));
	if (f)
		fclose(f);
	return n;
}

/* Reads a file of a process or a thread; it may have ended. */
static inline const char *read_of(int pid, const char *name)
{
	static char text[4096];
	char path[64];
	size_t n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	f = fopen(path, "r");
	if (f) {
		n = fread(text, 1, sizeof(text) - 1, f);
		fclose(f);
	}
	text[n] = 0;
	return text;
}

/* Memory of this process that counts as locked for devices. */
static inline long locked_kib(void)
{
	char line[128];
	FILE *f = fopen("/proc/self/status", "r");
	long n = -1;

	while (f && fgets(line, sizeof(line), f))
		/* each has its account */
		sscanf(line, under_iommufd ? "VmPin: %ld" : "VmLck: %ld", &n);
	if (f)
		fclose(f);
	return n;
}

/* Pages that are pinned for devices now, in all of the system. */
static inline long pinned(void)
{
	int refresh = must(open("/proc/sys/vm/stat_refresh", O_WRONLY));

	must(write(refresh, "1", 1));	/* the counters of every processor */
	close(refresh);
	return vmstat("nr_foll_pin_acquired") - vmstat("nr_foll_pin_released");
}

#endif
