// SPDX-License-Identifier: GPL-2.0-only
/*
 * How a hostile guest could get other people's data: its device reads pages that its
 * processors never touched. And how an honest guest could lose packets: its device
 * writes to such pages before the processor reads them.
 *
 * The device is QEMU's edu, which copies between memory and a buffer of its own as
 * it is told. Free memory is poisoned; a control run with the barrier switched off
 * must show the poison, or the test proves nothing; then every arrangement that
 * claims to be safe must show none.
 */
#include "edu.h"

#define SIZE (64 * MiB)
#define PAGES 8		/* that the device reads */
#define WRITES 4	/* and that it writes */

static const char *bdf;

/* Returns how many untouched pages were not zero when the device read them. */
static int stale(struct vfio *v, uint8_t *memory, uint64_t iova)
{
	int n = 0;

	for (int i = 1; i <= PAGES; i++) {
		memset(memory, 0, PAGE);
		edu_copy(v, iova, EDU_BUFFER, false);	/* a read that fails leaves it as it is */
		memset(memory, 0x11, PAGE);
		edu_copy(v, iova + i * 0x700000UL, EDU_BUFFER, false);
		edu_copy(v, EDU_BUFFER, iova, true);
		n += count_not(memory, PAGE, 0) != 0;
	}
	return n;
}

/* Returns how many untouched pages did not keep what the device wrote to them. */
static int lost(struct vfio *v, uint8_t *memory, uint64_t iova)
{
	int n = 0;

	memset(memory + PAGE, 0x77, PAGE);
	for (int i = 1; i <= WRITES; i++) {
		uint64_t page = i * 0x650000UL;

		edu_copy(v, iova + PAGE, EDU_BUFFER, false);
		edu_copy(v, EDU_BUFFER, iova + page, true);
		n += count_not(memory + page, PAGE, 0x77) != 0;
	}
	return n;
}

struct outcome {
	int stale, lost;
};

/* Makes the device do both, and ends device and memory. */
static struct outcome play(struct vfio *v, struct ram *r)
{
	const uint16_t on = PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
	struct outcome o;

	/* asking again would zero what should have been zeroed when it was mapped */
	if ((vfio_command(v) & on) != on)
		vfio_set_command(v, vfio_command(v) | on);
	if (!(vfio_command(v) & PCI_COMMAND_MASTER))
		ksft_exit_fail_msg("bus mastering was asked for and is not shown\n");
	o.stale = stale(v, r->at, 0);
	o.lost = lost(v, r->at, 0);
	vfio_close(v);
	ram_poison(r);
	return o;
}

static const struct outcome hole = { PAGES, WRITES }, safe, touch_first = { 0, WRITES },
	published = { PAGES, 0 };

static void expect(const char *what, struct outcome got, struct outcome want)
{
	bool ok = got.stale == want.stale && got.lost == want.lost;

	ksft_test_result(ok, "%s: %d of %d pages showed old bytes, %d of %d writes were lost\n",
			 what, got.stale, PAGES, got.lost, WRITES);
}

enum { UNREGISTERED = -1, FOREGROUND = 0 };

static struct outcome run(enum pages pages, int flags)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v;

	if (flags != UNREGISTERED)
		r.registration = must(ram_register(r.fd, flags));
	v = vfio_attach(bdf);
	must(vfio_map(&v, r.at, 0, SIZE));
	vfio_open(&v, bdf);
	if (flags == FOREGROUND)
		deferred(&r, policy == FASTIOVD_TOUCHMAP ? 0 : SIZE);
	if (flags == FASTIOVD_BACKGROUND && !background_zeroes(&r, 1))
		ksft_exit_fail_msg("nothing is zeroed in the background\n");
	return play(&v, &r);
}

/* Whether the kernel says that it was told to do what is not safe. */
static bool tainted(void)
{
	char text[32] = "";
	FILE *f = fopen("/proc/sys/kernel/tainted", "r");

	if (f && !fgets(text, sizeof(text), f))
		text[0] = 0;
	if (f)
		fclose(f);
	return atol(text) & 1 << 6;	/* TAINT_USER */
}

/* A device that masters the bus when vfio gets it: what is mapped for it is perhaps not zeroed. */
static void bound_as_master(void)
{
	const uint16_t on = PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
	char path[128];
	bool before;
	int fd;

	tell("/sys/bus/pci/drivers/vfio-pci/unbind", bdf);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/config", bdf);
	fd = must(open(path, O_WRONLY));
	must(pwrite(fd, &on, sizeof(on), PCI_COMMAND));
	close(fd);
	before = masters(bdf);
	tell("/sys/bus/pci/drivers_probe", bdf);
	ksft_test_result(before && !masters(bdf), "a device that %s the bus %s when it is bound\n",
			 before ? "masters" : "does not master",
			 masters(bdf) ? "goes on" : "stops");
}

/*
 * Nobody keeps a function that is no VF from the bus, so it gets only memory that is zeroed. A
 * parameter lets the tests' device pass for a VF, and the kernel says so from then on.
 */
static void no_vf(enum pages pages, bool passes)
{
	struct ram r = ram_new(SIZE, pages);
	struct fastiovd_stat stat;
	struct vfio v;

	defer_to_any(passes);
	r.registration = must(ram_register(r.fd, 0));
	v = vfio_attach(bdf);
	must(vfio_map(&v, r.at, 0, SIZE));
	stat = ram_stat(&r);
	ksft_test_result(stat.resident == SIZE &&
			 (passes ? !stat.zeroed && tainted() : stat.zeroed == SIZE),
			 "%s: %llu of %lu MiB are not zeroed, the kernel is %s, %s\n",
			 passes ? "passes for a VF" : "no VF",
			 (stat.resident - stat.zeroed) / MiB, SIZE / MiB,
			 tainted() ? "tainted" : "not tainted", pages_are[pages]);
	vfio_close(&v);
	ram_free(&r);
}

/* Memory that is mapped after the device masters the bus. */
static struct outcome mapped_late(enum pages pages)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);

	r.registration = must(ram_register(r.fd, 0));
	vfio_open(&v, bdf);
	vfio_set_command(&v, vfio_command(&v) | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	must(vfio_map(&v, r.at, 0, SIZE));
	return play(&v, &r);
}

/* An address space of the same iommufd, with memory that no device reaches yet. */
static uint32_t elsewhere(struct vfio *v, struct ram *r)
{
	struct vfio other = { .container = v->container, .ioas = ioas_new(v->container) };

	r->registration = must(ram_register(r->fd, 0));
	must(vfio_map(&other, r->at, 0, SIZE));
	deferred(r, 0);
	vfio_open(v, bdf);
	vfio_set_command(v, vfio_command(v) | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	return other.ioas;
}

/* Puts a part of another address space's memory into this one. */
static void ioas_copy_to(struct vfio *v, uint32_t from, uint64_t at, uint64_t iova, size_t size)
{
	struct iommu_ioas_copy copy = {
		.size = sizeof(copy), .flags = IOMMU_IOAS_MAP_FIXED_IOVA | IOMMU_IOAS_MAP_READABLE |
		IOMMU_IOAS_MAP_WRITEABLE,
		.src_ioas_id = from, .src_iova = at, .dst_ioas_id = v->ioas, .dst_iova = iova,
		.length = size,
	};

	must(ioctl(v->container, IOMMU_IOAS_COPY, &copy));
}

static void ioas_copy(struct vfio *v, uint32_t from, uint64_t at, size_t size)
{
	ioas_copy_to(v, from, at, at, size);
}

/* Memory of another address space comes to a device that masters the bus. */
static struct outcome copied_late(enum pages pages)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);

	ioas_copy(&v, elsewhere(&v, &r), 0, SIZE);
	return play(&v, &r);
}

/*
 * The second half of a mapping is pinned after other memory was put there: the pages are zeroed,
 * and the other memory is not.
 */
static struct outcome copied_in_halves(void)
{
	/* in the middle of a huge page, and where the device looks */
	const size_t half = 35 * MiB;
	struct ram r = ram_new(SIZE, HUGE), other = ram_new(SIZE, HUGE);
	struct vfio v = vfio_attach(bdf),
		away = { .container = v.container, .ioas = ioas_new(v.container) };
	struct outcome o;

	r.registration = must(ram_register(r.fd, 0));
	other.registration = must(ram_register(other.fd, 0));
	must(vfio_map(&away, r.at, 0, SIZE));
	ioas_copy(&v, away.ioas, 0, half);
	deferred(&r, half + MiB);	/* whole huge pages */
	must(mmap(r.at + half, SIZE - half, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		  other.fd, half));
	ioas_copy(&v, away.ioas, half, SIZE - half);
	vfio_open(&v, bdf);
	o = play(&v, &r);
	ram_free(&other);
	return o;
}

/* A device that masters the bus comes to other memory. */
static struct outcome attached_late(enum pages pages)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);

	ioas_attach(v.device, elsewhere(&v, &r));
	return play(&v, &r);
}

/*
 * While zeroing is under way, a page of a huge page that was put there meanwhile is pinned. The
 * pages after it do not belong to that huge page, and are zeroed too.
 */
static struct outcome pinned_meanwhile(void)
{
	const size_t page = 34 * MiB;	/* the device looks 1 MiB after it */
	const uint64_t whole = 1UL << 30;
	struct ram r = ram_new(SIZE, SMALL);
	struct vfio v = vfio_attach(bdf),
		away = { .container = v.container, .ioas = ioas_new(v.container) }, other = away;
	struct iommu_hwpt_alloc domain = { .size = sizeof(domain), .dev_id = v.id };

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&away, r.at, 0, SIZE));
	other.ioas = domain.pt_id = ioas_new(v.container);
	must(ioctl(v.container, IOMMU_HWPT_ALLOC, &domain));
	ioas_copy_to(&v, away.ioas, 0, whole, SIZE);
	deferred(&r, SIZE);
	ioas_copy(&v, away.ioas, 0, page);
	ioas_copy(&v, away.ioas, page + PAGE, SIZE - page - PAGE);
	vfio_open(&v, bdf);
	vfio_set_command(&v, vfio_command(&v) | PCI_COMMAND_MASTER);
	vfio_set_command(&v, vfio_command(&v) & ~PCI_COMMAND_MASTER);
	must(vfio_unmap(&v, whole, SIZE));	/* the last that had that page */
	must(mmap(r.at + page, 2 * MiB, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	must(madvise(r.at + page, 2 * MiB, MADV_HUGEPAGE));
	r.at[page] = 1;
	ioas_copy(&other, away.ioas, page, PAGE);
	return play(&v, &r);
}

/*
 * A device masters the bus. The process that copies a mapping into its address space zeroes the
 * memory first. A kill ends that in the middle, and the next process that does it zeroes the rest.
 */
static struct outcome killed_meanwhile(void)
{
	const size_t size = 512 * MiB;
	struct ram r = ram_new(size, SMALL);
	struct vfio v = vfio_attach(bdf),
		away = { .container = v.container, .ioas = ioas_new(v.container) };
	struct iommu_hwpt_alloc domain = { .size = sizeof(domain), .dev_id = v.id,
		.pt_id = away.ioas };
	struct fastiovd_stat stat;
	pid_t child;
	int status;

	must(ioctl(v.container, IOMMU_HWPT_ALLOC, &domain));
	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&away, r.at, 0, size));
	deferred(&r, size);
	vfio_open(&v, bdf);
	vfio_set_command(&v, vfio_command(&v) | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	child = fork_bound();
	if (!child) {
		must(nice(19));		/* who kills it is to be in time */
		ioas_copy(&v, away.ioas, 0, size);
		_exit(0);
	}
	while (!ram_stat(&r).zeroed && !waitpid(child, &status, WNOHANG))
		;
	kill(child, SIGKILL);
	waitpid(child, &status, 0);	/* unless it has ended by itself */
	stat = ram_stat(&r);
	ioas_copy(&v, away.ioas, 0, size);
	ksft_test_result(WIFSIGNALED(status) && stat.zeroed < size && ram_stat(&r).zeroed == size,
			 "%s after %llu of %zu MiB were zeroed; afterwards %llu are\n",
			 WIFSIGNALED(status) ? "killed" : "ended", stat.zeroed / MiB, size / MiB,
			 ram_stat(&r).zeroed / MiB);
	return play(&v, &r);
}

/* The registration ends while its memory is mapped and the device not yet a master. */
static struct outcome registration_ends(enum pages pages)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&v, r.at, 0, SIZE));
	vfio_open(&v, bdf);
	deferred(&r, SIZE);
	close(r.registration);
	r.registration = -1;
	return play(&v, &r);
}

/*
 * The registration ends, and then holes are punched into its memory. The device goes on using the
 * pages it has, of which the processor has none any more, and they are zeroed before that.
 */
static struct outcome punched(enum pages pages)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&v, r.at, 0, SIZE));
	vfio_open(&v, bdf);
	deferred(&r, SIZE);
	close(r.registration);
	r.registration = -1;
	must(fallocate(r.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * MiB, SIZE - 2 * MiB));
	return play(&v, &r);
}

/* Bus mastering is switched off, on, off and on again before the memory is clean. */
static struct outcome switched(enum pages pages)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&v, r.at, 0, SIZE));
	vfio_open(&v, bdf);
	deferred(&r, SIZE);
	for (int i = 0; i < 50; i++) {
		vfio_set_command(&v, vfio_command(&v) | PCI_COMMAND_MASTER);
		vfio_set_command(&v, vfio_command(&v) & ~PCI_COMMAND_MASTER);
	}
	if (vfio_command(&v) & PCI_COMMAND_MASTER)
		ksft_exit_fail_msg("bus mastering was switched off and is on\n");
	return play(&v, &r);
}

/*
 * With touchmap, a device has no page that nobody touched: it reads nothing there, and what it
 * writes is lost.
 */
static struct outcome on_touch(enum pages pages)
{
	struct outcome o;

	policy = FASTIOVD_TOUCHMAP;
	o = run(pages, FOREGROUND);
	policy = FASTIOVD_PAGECACHE;
	return o;
}

/*
 * A process does not get every page that a device gets: unmovable ones are kept apart. So they are
 * poisoned as pages of a device.
 */
static void poison_unmovable_memory(enum pages pages)
{
	uint32_t tested = policy;

	policy = FASTIOVD_PAGECACHE;
	run(pages, FOREGROUND);
	policy = tested;
}

/*
 * The first attempt does not poison all free memory: pages that were never used are zero, or the
 * attempt before has wiped them.
 */
static struct outcome until_it_shows(enum pages pages)
{
	struct outcome o;

	for (int tries = 0; tries < 20; tries++) {
		o = run(pages, FOREGROUND);
		if (o.stale == PAGES)
			break;
		poison_free_memory();
		poison_unmovable_memory(pages);
	}
	return o;
}

static struct outcome control(enum pages pages)
{
	struct outcome o;

	hold_master(false);
	o = until_it_shows(pages);
	hold_master(true);
	return o;
}

/*
 * The published design: the barrier finds nothing to zero. The device's writes survive here because
 * the host's first touch zeroes nothing.
 */
static struct outcome table(enum pages pages)
{
	struct outcome o;

	allow_table(true);
	policy = FASTIOVD_TABLE;
	o = until_it_shows(pages);
	policy = FASTIOVD_PAGECACHE;
	allow_table(false);
	return o;
}

int main(void)
{
	bdf = device_under_test();
	ksft_print_header();
	ksft_set_plan(1 + 4 * 12 - 1 + (under_iommufd ? 4 * 2 + 4 : 0));
	bound_as_master();
	for (enum pages pages = SMALL; pages <= RESERVED; pages++) {
		char what[64];

#define ARM(name, want, call)                                            \
		do {                                                     \
			poison_free_memory();                   \
			snprintf(what, sizeof(what), "%s, %s", name, pages_are[pages]); \
			expect(what, call, want);                        \
		} while (0)

		no_vf(pages, false);
		no_vf(pages, true);
		ARM("control: deferred, no barrier", hole, control(pages));
		ARM("control: table, with barrier", published, table(pages));
		ARM("eager", safe, run(pages, UNREGISTERED));
		ARM("deferred", safe, run(pages, FOREGROUND));
		ARM("deferred, background zeroing", safe, run(pages, FASTIOVD_BACKGROUND));
		ARM("mapped after the device is a master", safe, mapped_late(pages));
		ARM("registration ended", safe, registration_ends(pages));
		ARM("punched since", touch_first, punched(pages));
		ARM("mastering switched", safe, switched(pages));
		if (under_iommufd) {
			ARM("copied to a master", safe, copied_late(pages));
			ARM("attached to a master", safe, attached_late(pages));
			if (pages == SMALL) {
				ARM("pinned meanwhile", safe, pinned_meanwhile());
				ARM("killed meanwhile", safe, killed_meanwhile());
			}
			if (pages == HUGE)
				ARM("copied in halves", safe, copied_in_halves());
		}
		if (pages != RESERVED)
			ARM("on touch", touch_first, on_touch(pages));
	}
	ksft_finished();
}
