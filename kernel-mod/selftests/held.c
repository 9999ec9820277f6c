// SPDX-License-Identifier: GPL-2.0-only
/*
 * A device is held, kept from mastering the bus, while what it reaches is not zeroed. That delays
 * its owner and nobody else. Whatever the owner does with it meanwhile, other devices on the host
 * are used and closed as ever, every call that waits can be killed, no worker of the kernel waits,
 * and in the end the device masters the bus. The time grows with the memory, not with the number
 * of mappings.
 *
 * Two of QEMU's edu: one is held, and the other is used by somebody else.
 */
#include "edu.h"
#include "kvm.h"

#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define SIZE (512 * MiB)
#define SOON 1000.0	/* milliseconds */
#define LATE 60e3
#define DOORBELLS 300
#define EDU_LIVENESS 4
#define ROUNDS 5

static const char *bdf, *other;

struct held {
	struct ram r;
	struct vfio v;
	int bells[DOORBELLS + 1];	/* eventfds that write to the BAR */
	int pipe[2];
	pid_t asker;			/* whose thread zeroes */
};

static bool is_held(void)
{
	return !masters(bdf);
}

/* Whether the device masters the bus within that time. */
static bool comes(double milli)
{
	for (double end = milliseconds() + milli; is_held() && milliseconds() < end;)
		usleep(1000);
	return !is_held();
}

/* A write to the BAR whenever the eventfd is written to. */
static int bell(struct vfio *v, uint64_t offset, uint64_t data)
{
	struct vfio_region_info bar = { .argsz = sizeof(bar), .index = VFIO_PCI_BAR0_REGION_INDEX };
	struct vfio_device_ioeventfd ring = { .argsz = sizeof(ring),
		.flags = VFIO_DEVICE_IOEVENTFD_32, .data = data, .fd = must(eventfd(0, 0)) };

	must(ioctl(v->device, VFIO_DEVICE_GET_REGION_INFO, &bar));
	ring.offset = bar.offset + offset;
	must(ioctl(v->device, VFIO_DEVICE_IOEVENTFD, &ring));
	return ring.fd;
}

static void ring(int bell)
{
	must(write(bell, &(uint64_t){ 1 }, 8));
}

/* Has everything at hand that the device is disturbed with. */
static struct held prepare(void)
{
	struct held h = { .r = ram_new(SIZE, SMALL) };

	h.r.registration = must(ram_register(h.r.fd, 0));
	h.v = vfio_attach(bdf);
	must(vfio_map(&h.v, h.r.at, 0, SIZE));
	vfio_open(&h.v, bdf);
	vfio_set_command(&h.v, PCI_COMMAND_MEMORY);
	if (!under_iommufd)
		must(ioctl(h.v.container, VFIO_IOMMU_DIRTY_PAGES,
			   &(struct vfio_iommu_type1_dirty_bitmap){
				   .argsz = sizeof(struct vfio_iommu_type1_dirty_bitmap),
				   .flags = VFIO_IOMMU_DIRTY_PAGES_FLAG_START }));
	for (int i = 0; i < DOORBELLS; i++)
		h.bells[i] = bell(&h.v, EDU_LIVENESS, i);
	h.bells[DOORBELLS] = bell(&h.v, EDU_SOURCE, 0x1234567);
	must(pipe(h.pipe));
	return h;
}

static void ask(struct held *h)
{
	vfio_set_command(&h->v, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
}

static void release(struct held *h)
{
	for (int i = 0; i <= DOORBELLS; i++)
		close(h->bells[i]);
	close(h->pipe[0]);
	close(h->pipe[1]);
	vfio_close(&h->v);
	ram_free(&h->r);
}

/* What the owner of a held device does in a process of its own: 0 when it is done, or an error. */
static int nothing(struct held *h)
{
	(void)h;
	return 0;
}

static int load(struct held *h)
{
	(void)*(volatile uint32_t *)h->v.bar;
	return 0;
}

static int store(struct held *h)
{
	*(volatile uint32_t *)(h->v.bar + EDU_SOURCE) = 0x89abcde;
	return 0;
}

/* A virtual processor writes to the BAR. */
static int guest(struct held *h)
{
	static const uint8_t code[] = {
		0xb8, 0x00, 0x20,		/* mov ax, 0x2000 */
		0x8e, 0xd8,			/* mov ds, ax */
		0x66, 0xc7, 0x06, EDU_SOURCE, 0, 0xde, 0xbc, 0x9a, 0x08,
						/* mov dword [EDU_SOURCE], 0x89abcde */
		0xf4,				/* hlt */
	};
	struct guest g = guest_new();
	uint8_t *memory = must(mmap(NULL, 0x10000, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

	memcpy(memory + PAGE, code, sizeof(code));
	guest_memory(&g, 0, memory, 0x10000);
	guest_memory(&g, 0x20000, (void *)h->v.bar, 0x10000);
	if (guest_run(&g, PAGE) != KVM_EXIT_HLT)
		return ENOEXEC;
	guest_end(&g);
	return 0;
}

static int bar_pwrite(struct held *h)
{
	struct vfio_region_info bar = { .argsz = sizeof(bar), .index = VFIO_PCI_BAR0_REGION_INDEX };

	must(ioctl(h->v.device, VFIO_DEVICE_GET_REGION_INFO, &bar));
	return pwrite(h->v.device, &(uint32_t){ 0x89abcde }, 4, bar.offset + EDU_SOURCE) < 0 ?
		errno : 0;
}

/* The kernel reads the BAR for a pipe, of which it has the lock then. */
static int pipe_write(struct held *h)
{
	return write(h->pipe[1], (void *)h->v.bar, PAGE) < 0 ? errno : 0;
}

/* The kernel changes a word of the BAR with no lock, but not as a fault can be repeated. */
static int futex_wake(struct held *h)
{
	static uint32_t here;

	return syscall(SYS_futex, &here, FUTEX_WAKE_OP_PRIVATE, 1, 1, h->v.bar + EDU_LIVENESS,
		       FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0)) < 0 ? errno : 0;
}

/* The kernel writes to the BAR, with the lock of the address space, or of its ranges. */
static int bitmap(struct held *h)
{
	struct { struct vfio_iommu_type1_dirty_bitmap d; struct vfio_iommu_type1_dirty_bitmap_get g;
	} get = {
		{ .argsz = sizeof(get), .flags = VFIO_IOMMU_DIRTY_PAGES_FLAG_GET_BITMAP },
		{ 0, SIZE, { PAGE, SIZE / PAGE / 8, (void *)h->v.bar } },
	};
	struct iommu_ioas_iova_ranges ranges = { .size = sizeof(ranges), .ioas_id = h->v.ioas,
		.num_iovas = 8, .allowed_iovas = (uintptr_t)h->v.bar };

	return (under_iommufd ? ioctl(h->v.container, IOMMU_IOAS_IOVA_RANGES, &ranges) :
		ioctl(h->v.container, VFIO_IOMMU_DIRTY_PAGES, &get)) ? errno : 0;
}

/* A worker of the kernel writes to the BAR, which is where the page of an interrupt was. */
static int event_channel(struct held *h)
{
	struct channel c = channel_new();

	must(mremap((void *)h->v.bar, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, c.page));
	ring(c.interrupt.fd);
	channel_take(&c);
	return 0;
}

/* The end of the hold writes to the device, which has to be awake. */
static int sleep_deeply(struct held *h)
{
	struct vfio_device_feature feature = { .argsz = sizeof(feature),
		.flags = VFIO_DEVICE_FEATURE_SET | VFIO_DEVICE_FEATURE_LOW_POWER_ENTRY };

	return ioctl(h->v.device, VFIO_DEVICE_FEATURE, &feature) ? errno : 0;
}

/* All doorbells are rung, and one of them is taken away. */
static void doorbells(struct held *h)
{
	for (int i = 0; i <= DOORBELLS; i++)
		ring(h->bells[i]);
	close(h->bells[0]);
}

/* Whether a process has ended within that time, or before. */
static bool ended(pid_t child, double milli)
{
	for (double end = milliseconds() + milli;; usleep(1000)) {
		if (waitpid(child, NULL, WNOHANG))	/* also if that was seen before */
			return true;
		if (milliseconds() > end)
			return false;
	}
}

static bool killed(pid_t child)
{
	kill(child, SIGKILL);
	return ended(child, SOON);
}

static pid_t start(int (*what)(struct held *), struct held *h)
{
	pid_t child = fork_bound();

	if (!child) {
		signal(SIGBUS, SIG_DFL);
		_exit(what(h));
	}
	return child;
}

enum { WAITS = -1, ENDED = -2 };

/* How a process ends within that time: 0, an error, ENDED by a signal, or WAITS if it does not. */
static int outcome(pid_t child, double milli)
{
	siginfo_t info = {};

	for (double end = milliseconds() + milli; !info.si_pid && milliseconds() < end;) {
		usleep(1000);
		must(waitid(P_PID, child, &info, WEXITED | WNOHANG | WNOWAIT));
	}
	if (!info.si_pid)
		return WAITS;
	return info.si_code == CLD_EXITED ? info.si_status : ENDED;
}

static const char *told(int result)
{
	return result == WAITS ? "waits" : result == ENDED ? "is ended" :
		result ? strerror(result) : "is done";
}

/* Reads what the owner wrote to the pipe. */
static int pipe_read(struct held *h)
{
	char page[PAGE];

	return read(h->pipe[0], page, sizeof(page)) < 0 ? errno : 0;
}

/*
 * Milliseconds that somebody else's device and guest take to have their interrupts off, and that
 * the device takes to be closed.
 */
struct times {
	double off, close;
};

static void set_msi(struct vfio *v, bool on)
{
	struct { struct vfio_irq_set head; int32_t fd; } set = {
		{ .argsz = sizeof(set), .index = VFIO_PCI_MSI_IRQ_INDEX,
		  .flags = VFIO_IRQ_SET_ACTION_TRIGGER |
			   (on ? VFIO_IRQ_SET_DATA_EVENTFD : VFIO_IRQ_SET_DATA_NONE),
		  .count = on }, must(eventfd(0, 0)),
	};

	must(ioctl(v->device, VFIO_DEVICE_SET_IRQS, &set));
	close(set.fd);
}

static void use_other(struct times *t)
{
	struct vfio v = vfio_attach(other);
	struct channel c = channel_new();
	double before;

	vfio_open(&v, other);
	set_msi(&v, true);
	before = milliseconds();
	set_msi(&v, false);
	channel_take(&c);
	t->off = milliseconds() - before;
	before = milliseconds();
	vfio_close(&v);
	t->close = milliseconds() - before;
	channel_end(&c);
}

/*
 * Measures what somebody else's device takes. The least of some times is the one that other
 * work has disturbed least. Returns false if the others were not ready, and if the hold of the
 * first device ended meanwhile: a process that waited for it looks ready then.
 */
static bool use_others(struct times *least)
{
	static struct times *shared;
	bool was_held = is_held(), ready;
	pid_t child;

	if (!shared)
		shared = must(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	child = must(fork());
	if (!child) {
		for (int i = 0; i < ROUNDS; i++)
			use_other(&shared[i]);
		_exit(0);
	}
	ready = false;
	for (double end = milliseconds() + LATE / 2; !ready && milliseconds() < end;) {
		ready = ended(child, 1);
		if (was_held && !is_held())
			break;
	}
	if (was_held && (!ready || !is_held())) {
		if (!ready)
			kill(child, SIGKILL);
		return false;
	}
	*least = shared[0];
	for (int i = 1; i < ROUNDS; i++) {
		least->off = shared[i].off < least->off ? shared[i].off : least->off;
		least->close = shared[i].close < least->close ? shared[i].close : least->close;
	}
	return ready;
}

/* Whether a process is a worker of the kernel that sleeps for a device or a guest's interrupt. */
static bool waits(int pid)
{
	for (int i = 0; i < 5; i++) {
		const char *stat = read_of(pid, "stat"), *stack;

		if (!strstr(stat, "(kworker") || strstr(stat, ") R "))
			return false;
		stack = read_of(pid, "stack");
		if (!strstr(stack, "vfio_") && !strstr(stack, "irqfd_"))
			return false;
		usleep(10000);
	}
	return true;
}

static bool a_worker_waits(void)
{
	DIR *proc = opendir("/proc");
	bool any = false;

	for (struct dirent *e; !any && (e = readdir(proc));)
		any = atoi(e->d_name) && waits(atoi(e->d_name));
	closedir(proc);
	return any;
}

static uint32_t value(struct held *h)
{
	return *(volatile uint32_t *)(h->v.bar + EDU_SOURCE);
}

/* Puts a page more into the address space. */
static int map_more(struct held *h)
{
	static uint8_t page[PAGE] __attribute__((aligned(PAGE)));

	return vfio_map(&h->v, page, 1UL << 40, PAGE) ? errno : 0;
}

static const struct disturbance {
	const char *name;
	int (*what)(struct held *h);
	int result;			/* of it, while the device is held */
	int (*then)(struct held *h);	/* by another process of the owner, that may wait for it */
	uint32_t value;			/* that the device has in the end */
} disturbances[] = {
	{ "nothing", nothing, 0, nothing, 0 },
	{ "301 ioeventfds", nothing, 0, nothing, 0x1234567 },
	{ "a load", load, WAITS, nothing, 0 },
	{ "a store", store, WAITS, nothing, 0x89abcde },
	{ "a virtual processor's store", guest, WAITS, nothing, 0x89abcde },
	{ "pwrite()", bar_pwrite, WAITS, nothing, 0x89abcde },
	{ "a pipe that the BAR is written to", pipe_write, EFAULT, pipe_read, 0 },
	{ "a futex in the BAR", futex_wake, EFAULT, nothing, 0 },
	{ "a bitmap in the BAR", bitmap, EFAULT, map_more, 0 },
	{ "an event channel in the BAR", event_channel, 0, nothing, 0 },
	{ "low power", sleep_deeply, WAITS, nothing, 0 },
};

/* Whether that takes no more, at one of some attempts: what noise delays, it delays once. */
static bool undisturbed(struct times *t, const struct times *most)
{
	for (int tries = 0; tries < 10; tries++) {
		if (!use_others(t))
			return false;
		if (t->off <= most->off && t->close <= most->close)
			return true;
	}
	return false;
}

/* Somebody else's device takes no longer, and the device comes to the bus. */
static void disturb(const struct disturbance *d, const struct times *most)
{
	struct held h = prepare();
	struct times t = {};
	bool in_time, worker, obeyed, held, in_the_end, came;
	int result;
	pid_t child, killable, then;

	h.asker = vfio_hold(&h.v, bdf, h.bells[0]);
	child = start(d->what, &h);
	killable = start(d->what, &h);
	usleep(50000);
	then = start(d->then, &h);
	if (d->value == 0x1234567)
		doorbells(&h);
	usleep(50000);
	in_time = undisturbed(&t, most);
	ksft_test_result(in_time,
			 "%s: another's interrupts are off after %.1f ms, it is closed after %.1f ms\n",
			 d->name, t.off, t.close);
	result = outcome(child, d->result == WAITS ? 50 : SOON);
	worker = a_worker_waits();
	obeyed = killed(killable) && killed(then) && (d->value || killed(child));
	held = is_held();
	ksft_test_result(held && result == d->result && !worker && obeyed,
			 "%s: %s, the call: %s, %s, %s\n", d->name,
			 held ? "it is held" : "it is not held any more", told(result),
			 worker ? "a worker waits" : "no worker waits",
			 obeyed ? "blocked calls end by a kill" : "a blocked call does not end");
	vfio_let_go(h.asker);
	in_the_end = comes(LATE);
	came = in_the_end && (!d->value || (ended(child, LATE) && value(&h) == d->value));
	ksft_test_result(came, "%s: %s, %s\n", d->name,
			 in_the_end ? "then it masters the bus" : "it never masters the bus",
			 came ? "and has what it was told" : "and has not what it was told");
	killed(child);
	killed(h.asker);
	release(&h);
}

/* Milliseconds of processor time that this process has used, with all its threads. */
static double used(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
		(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

/* Who has the device held pays for the zeroing: nothing else takes time here. */
static void charged(void)
{
	struct held h = prepare();
	double since = milliseconds(), before = used(), took;

	ask(&h);
	load(&h);
	took = milliseconds() - since;
	ksft_test_result(used() - before > took / 2,
			 "held for %.0f ms, of which %.0f ms are its owner's\n", took,
			 used() - before);
	release(&h);
}

/* Who asked for the bus is killed. The device stays held until another owner asks. */
static void orphaned(void)
{
	struct held h = prepare();
	pid_t child = must(fork());
	bool held, came;

	if (!child) {
		ask(&h);
		raise(SIGKILL);
	}
	waitpid(child, NULL, 0);
	held = is_held();
	ask(&h);
	came = comes(LATE);
	ksft_test_result(held && came, "who asked is killed: %s, and %s when another asks\n",
			 held ? "it stays held" : "it is not held",
			 came ? "masters the bus" : "does not master the bus");
	release(&h);
}

/* Keeps a processor as busy as zeroing does. */
static int be_busy(struct held *h)
{
	static uint8_t page[PAGE];

	(void)h;
	for (;;)
		memset(page, 0, sizeof(page));
}

/*
 * Somebody else's device takes that long with nothing held, and may take three times that, or what
 * nobody notices.
 */
static struct times allowed(void)
{
	pid_t busy = start(be_busy, NULL);
	struct times t;

	if (!use_others(&t))
		ksft_exit_fail_msg("the second device cannot be used\n");
	killed(busy);
	ksft_print_msg("nothing is held: interrupts off after %.1f ms, closed after %.1f ms\n",
		       t.off, t.close);
	return (struct times){ t.off * 3 > 50 ? t.off * 3 : 50,
		t.close * 3 > 50 ? t.close * 3 : 50 };
}

/* Milliseconds that a device is held with so many mappings, of a page each. */
static double held_for(int mappings)
{
	struct ram r = ram_new(mappings * PAGE, SMALL);
	struct vfio v = vfio_attach(bdf);
	double since, took;

	r.registration = must(ram_register(r.fd, 0));
	for (int i = 0; i < mappings; i++)
		must(vfio_map(&v, r.at + i * PAGE, i * PAGE, PAGE));
	vfio_open(&v, bdf);
	since = milliseconds();
	vfio_set_command(&v, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	(void)*(volatile uint32_t *)v.bar;
	took = milliseconds() - since;
	vfio_close(&v);
	ram_free(&r);
	return took;
}

/*
 * So many mappings and half of them, in turn, as often as it takes for the machine's other work to
 * be spread over both.
 */
static void by_mappings(void)
{
	static const int mappings[] = { 16384, 32768, 65000 };

	for (size_t i = 0; i < sizeof(mappings) / sizeof(*mappings); i++) {
		double half = 0, all = 0;
		int n = 0;

		while (n < 3 || (n < 10 && all > 2.4 * half)) {
			half += held_for(mappings[i] / 2);
			all += held_for(mappings[i]);
			n++;
		}
		ksft_test_result(all <= 2.4 * half,
				 "held for %.1f ms with %d mappings, for %.1f ms with half of them\n",
				 all / n, mappings[i], half / n);
		if (all > 2.4 * half)
			ksft_exit_fail_msg("the time is not proportional\n");
	}
}

int main(void)
{
	const int n = sizeof(disturbances) / sizeof(*disturbances);
	struct times most;

	bdf = device_under_test();
	other = second_device();
	ksft_print_header();
	ksft_set_plan(3 * n + 2 + 3);
	most = allowed();
	for (int i = 0; i < n; i++)
		disturb(&disturbances[i], &most);
	charged();
	orphaned();
	by_mappings();
	ksft_finished();
}
