// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two devices that can only be reset together, by their bus: a set. It is reset when none of them
 * is open any more, and when who owns all of them asks, also while one is held. Whoever opens a
 * device finds it reset, or is told to come again.
 *
 * The devices are two functions of QEMU's edu, which cannot be reset alone, behind a port of their
 * own.
 */
#include "vfio.h"
#include "kprobe.h"

#include <pthread.h>
#include <stdatomic.h>

#define ROUNDS 50	/* of what may meet by chance */
#define MEETINGS 3	/* that are arranged */
#define LATE 60e3	/* milliseconds */

static const char *first, *second;

/* Another device of the group, or of the iommufd. */
static struct vfio beside(const struct vfio *with, const char *bdf)
{
	struct vfio v = { .container = must(dup(with->container)), .device = -1 };

	if (under_iommufd)
		return vfio_join(with, bdf);
	v.group = must(dup(with->group));
	return v;
}

static void last_closed(void)
{
	struct vfio a = vfio_attach(first), b = beside(&a, second);
	int before, one, both;

	vfio_open(&a, first);
	vfio_open(&b, second);
	before = calls();
	vfio_close(&b);
	one = calls() - before;
	vfio_close(&a);
	both = calls() - before;
	ksft_test_result(!one && both == 1,
			 "one of two is closed: %d resets; the other too: %d\n", one, both);
}

/* Asks for a reset of the set, as the owner of these groups, or of the iommufd. */
static int hot_reset(struct vfio *v, int groups)
{
	struct { struct vfio_pci_hot_reset head; int32_t group; } reset = {
		{ .argsz = sizeof(reset), .count = groups }, v->group };

	return ioctl(v->device, VFIO_DEVICE_PCI_HOT_RESET, &reset);
}

static void asked(void)
{
	struct vfio a = vfio_attach(first), b = beside(&a, second);
	const int all = under_iommufd ? 0 : 1;
	int before, ret, refused, resets;

	vfio_open(&a, first);
	vfio_open(&b, second);
	before = calls();
	refused = hot_reset(&a, !all) ? errno : 0;
	resets = calls() - before;
	ksft_test_result(refused && !resets,
			 "asked for without what proves ownership: %s, %d resets\n",
			 refused ? strerror(refused) : "done", resets);
	ret = hot_reset(&a, all) ? errno : 0;
	resets = calls() - before;
	ksft_test_result(!ret && resets == 1, "asked for by the owner: %s, %d resets\n",
			 ret ? strerror(ret) : "done", resets);
	vfio_close(&b);
	vfio_close(&a);
}

/* The hold outlasts the reset: no device masters the bus before its memory is zeroed. */
static void held(void)
{
	struct vfio a = vfio_attach(first), b = beside(&a, second);
	struct ram r = ram_new(256 * MiB, SMALL);
	int ret, before;
	bool still, came;
	pid_t asker;

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&a, r.at, 0, r.size));
	vfio_open(&a, first);
	vfio_open(&b, second);
	asker = vfio_hold(&a, first, -1);
	before = calls();
	ret = hot_reset(&b, under_iommufd ? 0 : 1) ? errno : 0;
	still = !masters(first) && vfio_command(&a) & PCI_COMMAND_MASTER;
	ksft_test_result(!ret && calls() - before == 1 && still,
			 "while one is held: %s, and it is %s\n", ret ? strerror(ret) : "reset",
			 still ? "still held" : "not held");
	vfio_let_go(asker);
	for (int i = 0; i < 6000 && !masters(first); i++)
		usleep(10000);
	came = masters(first);
	ksft_test_result(came && ram_stat(&r).zeroed == r.size,
			 "then it %s, and %llu of %zu bytes are zeroed\n",
			 came ? "masters the bus" : "never masters the bus",
			 (unsigned long long)ram_stat(&r).zeroed, r.size);
	kill(asker, SIGKILL);
	waitpid(asker, NULL, 0);
	vfio_close(&b);
	vfio_close(&a);
	ram_free(&r);
}

/* What a thread does with a device. */
struct work {
	pthread_t thread;
	atomic_int number;	/* the thread's, when it has begun */
	int device, iommufd;
	int again;		/* times that it was told to come again */
};

static void *close_it(void *arg)
{
	struct work *w = arg;

	w->number = gettid();
	close(w->device);
	return NULL;
}

/* Opens the device as soon as that can be. */
static void *open_it(void *arg)
{
	struct work *w = arg;
	struct vfio_device_bind_iommufd bind = { .argsz = sizeof(bind), .iommufd = w->iommufd };
	double end = milliseconds() + LATE;

	w->number = gettid();
	while (ioctl(w->device, VFIO_DEVICE_BIND_IOMMUFD, &bind)) {
		w->again += errno == EAGAIN;
		if ((errno != EAGAIN && errno != EINVAL /* it is still open */) ||
		    milliseconds() > end)
			ksft_exit_fail_msg("not opened again: %s\n", strerror(errno));
	}
	return NULL;
}

/* A device is opened while it is closed: not before the reset of its set. */
static void at_once(void)
{
	struct vfio v = vfio_attach(first);
	int early = 0, again = 0;

	for (int i = 0; i < ROUNDS; i++) {
		struct work closes = { .device = v.device },
			opens = { .device = vfio_node(first), .iommufd = v.container };
		int before = calls();

		pthread_create(&closes.thread, NULL, close_it, &closes);
		open_it(&opens);
		early += calls() == before;
		again += opens.again;
		pthread_join(closes.thread, NULL);
		v.device = opens.device;
	}
	ksft_test_result(!early, "opened %d times while it was closed: %d times before its reset, "
			 "%d times told to come again\n", ROUNDS, early, again);
	vfio_close(&v);
}

/* Whether a thread comes to sleep below that function of the kernel, for what cannot be killed. */
static bool waits_in(struct work *w, const char *function)
{
	for (double end = milliseconds() + LATE; milliseconds() < end; usleep(1000))
		if (w->number && strstr(read_of(w->number, "stat"), ") D ") &&
		    strstr(read_of(w->number, "stack"), function))
			return true;
	return false;
}

/*
 * Closing a device waits for its thread that zeroes, which is stopped with its process. Returns
 * that process, which has not got the device any more.
 */
static pid_t delay_closing(struct vfio *v)
{
	pid_t asker;

	vfio_open(v, first);
	munmap((void *)v->bar, v->bar_size);	/* that would keep the device open */
	v->bar = NULL;
	asker = fork_bound();
	if (!asker) {
		vfio_set_command(v, PCI_COMMAND_MASTER);
		close(v->device);
		raise(SIGSTOP);
		_exit(0);
	}
	must(waitpid(asker, NULL, WUNTRACED));
	return asker;
}

/*
 * Lets somebody who opens the device wait for the end of its closing. He has the lock of the set
 * for reading, and a reset takes it for writing: so he comes before the reset, whoever runs when.
 */
static struct work meet(bool *met, bool *early)
{
	struct vfio v = vfio_attach(first);
	struct ram r = ram_new(64 * MiB, SMALL);	/* the asking itself zeroes 8 MiB */
	struct work closes = {}, opens = { .iommufd = v.container };
	int before = calls();
	pid_t asker;

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&v, r.at, 0, r.size));
	asker = delay_closing(&v);
	closes.device = v.device;
	opens.device = vfio_node(first);
	pthread_create(&closes.thread, NULL, close_it, &closes);
	*met = waits_in(&closes, "vfio_pci_stop_hold");
	pthread_create(&opens.thread, NULL, open_it, &opens);
	*met &= waits_in(&opens, "vfio_df_ioctl_bind_iommufd");
	kill(asker, SIGKILL);
	must(waitpid(asker, NULL, 0));
	pthread_join(closes.thread, NULL);
	pthread_join(opens.thread, NULL);
	*early = calls() == before;
	close(opens.device);
	close(v.container);
	ram_free(&r);
	return opens;
}

/* Who opens a device at the end of its closing is told to come again, and then finds it reset. */
static void come_again(void)
{
	int met = 0, told = 0, early = 0;

	for (int i = 0; i < MEETINGS && met == i; i++) {
		bool waited, was_early;

		told += meet(&waited, &was_early).again > 0;
		met += waited;
		early += was_early;
	}
	ksft_test_result(met == MEETINGS && told == MEETINGS && !early,
			 "%d of %d times the opening waited for the closing: "
			 "%d times told to come again, %d times opened before its reset\n",
			 met, MEETINGS, told, early);
}

int main(void)
{
	first = device_under_test();
	second = second_device();
	ksft_print_header();
	ksft_set_plan(5 + 2 * under_iommufd);
	count_calls("pci_reset_bus");
	last_closed();
	asked();
	held();
	if (under_iommufd) {	/* a group's device may be opened twice */
		at_once();
		come_again();
	}
	count_no_calls();
	ksft_finished();
}
