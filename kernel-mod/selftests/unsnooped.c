// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where the IOMMU cannot make a device's accesses snoop the caches, a device gets what a stock
 * kernel gives it: memory that is zeroed before it is mapped. That is so for a VF, too; the device
 * passes for one.
 *
 * The program needs such an IOMMU. The control is hazard, where the same memory of the same device
 * is not zeroed.
 */
#include "vfio.h"

#define SIZE (64 * MiB)

static const char *bdf;

static void expect_zeroed(struct ram *r, const char *when, enum pages pages)
{
	struct fastiovd_stat stat = ram_stat(r);

	ksft_test_result(stat.resident == SIZE && stat.zeroed == SIZE,
			 "%s: %llu of %lu MiB are there, and %llu are zeroed, %s\n", when,
			 stat.resident / MiB, SIZE / MiB, stat.zeroed / MiB, pages_are[pages]);
}

static void mapped(enum pages pages)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&v, r.at, 0, SIZE));
	expect_zeroed(&r, "mapped", pages);
	vfio_close(&v);
	ram_free(&r);
}

/* The memory is mapped before the device comes to it: not zeroed at first, and zeroed then. */
static void attached(enum pages pages)
{
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_bind(bdf, must(open("/dev/iommu", O_RDWR)));
	struct iommu_hwpt_alloc domain = { .size = sizeof(domain), .dev_id = v.id };

	v.ioas = domain.pt_id = ioas_new(v.container);
	must(ioctl(v.container, IOMMU_HWPT_ALLOC, &domain));
	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&v, r.at, 0, SIZE));
	deferred(&r, SIZE);
	ioas_attach(v.device, domain.out_hwpt_id);
	expect_zeroed(&r, "attached", pages);
	vfio_close(&v);
	ram_free(&r);
}

int main(void)
{
	bdf = device_under_test();
	ksft_print_header();
	ksft_set_plan(under_iommufd ? 8 : 4);
	for (enum pages pages = SMALL; pages <= RESERVED; pages++) {
		mapped(pages);
		if (under_iommufd)
			attached(pages);
	}
	ksft_finished();
}
