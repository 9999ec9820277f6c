// SPDX-License-Identifier: GPL-2.0-only
/*
 * A limit of Linux that docs/threat-model.md names. A worker of KVM's writes an event channel of
 * Xen into a page of the guest, and waits if the guest's VMM serves that page itself and does not.
 * Whoever takes an interrupt away from another guest of the host waits for that worker.
 * Where a row fails, Linux has changed.
 */
#include "kvm.h"

#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/syscall.h>

/* Serves the page of a channel from now on. */
static int serve(struct channel *c)
{
	int uffd = must(syscall(SYS_userfaultfd, O_CLOEXEC));
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register missing = { .range = { (uintptr_t)c->page, PAGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING };

	must(ioctl(uffd, UFFDIO_API, &api));
	must(ioctl(uffd, UFFDIO_REGISTER, &missing));
	must(madvise(c->page, PAGE, MADV_DONTNEED));
	return uffd;
}

static void *take(void *channel)
{
	channel_take(channel);
	return NULL;
}

static bool waits(pthread_t thread)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec++;
	return pthread_timedjoin_np(thread, NULL, &end) == ETIMEDOUT;
}

int main(void)
{
	struct channel served = channel_new(), other = channel_new();
	int uffd = serve(&served);
	struct uffdio_zeropage page = { .range = { (uintptr_t)served.page, PAGE } };
	struct uffd_msg asked;
	pthread_t own, another;
	bool own_waits, another_waits;

	ksft_print_header();
	ksft_set_plan(2);
	must(write(served.interrupt.fd, &(uint64_t){ 1 }, 8));
	must(read(uffd, &asked, sizeof(asked)));	/* the worker has come to the page */
	pthread_create(&own, NULL, take, &served);
	own_waits = waits(own);
	pthread_create(&another, NULL, take, &other);
	another_waits = waits(another);
	ksft_test_result(own_waits && another_waits,
			 "the page is not served: who takes that guest's interrupt %s, another's %s\n",
			 own_waits ? "waits" : "is done", another_waits ? "waits" : "is done");
	must(ioctl(uffd, UFFDIO_ZEROPAGE, &page));
	own_waits = own_waits && waits(own);
	another_waits = another_waits && waits(another);
	ksft_test_result(!own_waits && !another_waits,
			 "the page is served: who takes that guest's interrupt %s, another's %s\n",
			 own_waits ? "waits" : "is done", another_waits ? "waits" : "is done");
	ksft_finished();
}
