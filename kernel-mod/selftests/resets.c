// SPDX-License-Identifier: GPL-2.0-only
/*
 * A VF that nothing has touched since its last reset is not reset again. Whatever touches it, the
 * next reset that is asked for takes place, and the one at the next opening if the VF could not be
 * reset when it was closed. Nothing that one owner left in it is there for the next.
 *
 * The device is a VF of QEMU's NVMe controller: it has a power state, as those of igb do not.
 */
#include "vfio.h"
#include "kprobe.h"

#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>

#define QUEUES 0x24	/* a register of two numbers, 0 after a reset */

static const char *bdf;

/*
 * Whether the kernel may let the VF sleep when it is not in use. Its waking counts as a touch.
 * Returns false if the kernel has no power management, so nothing sleeps.
 */
static bool may_sleep(bool may)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/power/control", bdf);
	if (access(path, F_OK))
		return false;
	tell(path, may ? "auto" : "on");
	return true;
}

static void nothing(struct vfio *v)
{
	(void)v;
}

static void memory_on(struct vfio *v)
{
	vfio_set_command(v, PCI_COMMAND_MEMORY);
}

static void load(struct vfio *v)
{
	memory_on(v);
	(void)*(volatile uint32_t *)v->bar;
}

static uint64_t bar_offset(struct vfio *v)
{
	struct vfio_region_info bar = { .argsz = sizeof(bar), .index = VFIO_PCI_BAR0_REGION_INDEX };

	must(ioctl(v->device, VFIO_DEVICE_GET_REGION_INFO, &bar));
	return bar.offset;
}

static void bar_pread(struct vfio *v)
{
	uint32_t value;

	memory_on(v);
	must(pread(v->device, &value, 4, bar_offset(v) + QUEUES));
}

static void bar_pwrite(struct vfio *v)
{
	memory_on(v);
	must(pwrite(v->device, &(uint32_t){ 0 }, 4, bar_offset(v) + QUEUES));
}

static void ioeventfd(struct vfio *v)
{
	struct vfio_device_ioeventfd ring = { .argsz = sizeof(ring),
		.flags = VFIO_DEVICE_IOEVENTFD_32, .offset = bar_offset(v) + QUEUES,
		.fd = must(eventfd(0, 0)) };

	memory_on(v);
	must(ioctl(v->device, VFIO_DEVICE_IOEVENTFD, &ring));
}

/* Finds a capability in the configuration space. */
static uint8_t capability(struct vfio *v, uint8_t id)
{
	uint8_t at, is;

	must(pread(v->device, &at, 1, v->config + PCI_CAPABILITY_LIST));
	while (at) {
		must(pread(v->device, &is, 1, v->config + at));
		if (is == id)
			return at;
		must(pread(v->device, &at, 1, v->config + at + 1));
	}
	ksft_exit_fail_msg("the device has no capability %u\n", id);
}

static void config_write(struct vfio *v)
{
	uint64_t at = v->config + capability(v, PCI_CAP_ID_EXP) + PCI_EXP_DEVCTL;
	uint16_t control;

	must(pread(v->device, &control, 2, at));
	control ^= PCI_EXP_DEVCTL_RELAX_EN;
	must(pwrite(v->device, &control, 2, at));
}

/* Of what no capability has, vfio knows nothing. */
static void config_beside(struct vfio *v)
{
	must(pwrite(v->device, &(uint32_t){ 0 }, 4, v->config + 0xf0));
}

static void master(struct vfio *v)
{
	vfio_set_command(v, PCI_COMMAND_MASTER);
}

/* The bus is had later, when what is mapped is zeroed. */
static void held_master(struct vfio *v)
{
	struct ram r = ram_new(64 * MiB, SMALL);

	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(v, r.at, 0, r.size));
	deferred(&r, r.size);	/* more than is zeroed at once: the VF is held */
	master(v);
	for (int i = 0; i < 1000 && !masters(bdf); i++)
		usleep(10000);
	must(vfio_unmap(v, 0, r.size));
	ram_free(&r);
}

/* An eventfd that vfio signals from now on. */
static int signalled(struct vfio *v, uint32_t index)
{
	struct { struct vfio_irq_set head; int32_t fd; } set = {
		{ .argsz = sizeof(set), .index = index, .count = 1,
		  .flags = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_EVENTFD },
		must(eventfd(0, EFD_NONBLOCK)),
	};

	must(ioctl(v->device, VFIO_DEVICE_SET_IRQS, &set));
	return set.fd;
}

static void interrupts(struct vfio *v)
{
	close(signalled(v, VFIO_PCI_MSIX_IRQ_INDEX));
}

static void listen_for_errors(struct vfio *v)
{
	close(signalled(v, VFIO_PCI_ERR_IRQ_INDEX));
}

/* As drivers/pci/pcie/aer_inject.c has it, which no header exports. */
struct aer_error_inj {
	uint8_t bus, dev, fn;
	uint32_t uncor_status, cor_status, header_log[4], domain;
};

/* Until then the kernel locks the devices, and would refuse to reset the VF. */
static void wait_for_recovery(int log, const char *port)
{
	struct pollfd more = { .fd = log, .events = POLLIN };
	char record[8192];
	ssize_t n;

	while (poll(&more, 1, 60000) == 1) {
		n = read(log, record, sizeof(record) - 1);
		if (n < 0 && errno != EPIPE)	/* records were lost */
			break;
		record[n < 0 ? 0 : n] = '\0';
		if (!strstr(record, port) || !strstr(record, "device recovery "))
			continue;
		if (!strstr(record, "successful"))
			break;
		return;
	}
	ksft_exit_fail_msg("the devices below %s do not recover from an error\n", port);
}

/*
 * The port above the VF has an error, as the emulated VF cannot report one. The drivers of all
 * devices below the port hear of it. It is not fatal, so none of them resets its device.
 */
static void bus_error(struct vfio *v)
{
	struct aer_error_inj error = { .uncor_status = PCI_ERR_UNC_COMP_TIME };
	int heard = signalled(v, VFIO_PCI_ERR_IRQ_INDEX), inject, log;
	char link[128], path[PATH_MAX];
	const char *port;
	uint64_t times;

	snprintf(link, sizeof(link), "/sys/bus/pci/devices/%s", bdf);
	if (!realpath(link, path))
		ksft_exit_fail_msg("%s: %s\n", link, strerror(errno));
	port = basename(dirname(path));
	if (sscanf(port, "%x:%hhx:%hhx.%hhx", &error.domain, &error.bus, &error.dev,
		   &error.fn) != 4)
		ksft_exit_fail_msg("the device is below %s, which is no port\n", port);
	log = must(open("/dev/kmsg", O_RDONLY | O_NONBLOCK));
	must(lseek(log, 0, SEEK_END));
	inject = must(open("/dev/aer_inject", O_WRONLY));
	must(write(inject, &error, sizeof(error)));
	wait_for_recovery(log, port);
	must(read(heard, &times, sizeof(times)));
	close(inject);
	close(log);
	close(heard);
}

static void power_state(struct vfio *v, int state)
{
	uint64_t at = v->config + capability(v, PCI_CAP_ID_PM) + PCI_PM_CTRL;
	uint16_t control;

	must(pread(v->device, &control, 2, at));
	control = (control & ~PCI_PM_CTRL_STATE_MASK) | state;
	must(pwrite(v->device, &control, 2, at));
}

static void asleep(struct vfio *v)
{
	power_state(v, 3);
	power_state(v, 0);
}

/* As a VMM has it whose guest lets the device sleep. */
static void low_power(struct vfio *v)
{
	struct { struct vfio_device_feature head; } feature = { {
		.argsz = sizeof(feature),
		.flags = VFIO_DEVICE_FEATURE_SET | VFIO_DEVICE_FEATURE_LOW_POWER_ENTRY } };
	char path[128], state[32] = "";
	int fd;

	may_sleep(true);
	must(ioctl(v->device, VFIO_DEVICE_FEATURE, &feature));
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/power/runtime_status", bdf);
	for (int i = 0; i < 500 && strncmp(state, "suspended", 9); i++) {
		usleep(10000);
		fd = must(open(path, O_RDONLY));
		must(read(fd, state, sizeof(state) - 1));
		close(fd);
	}
	if (strncmp(state, "suspended", 9))
		ksft_exit_fail_msg("the device does not go to sleep: %s\n", state);
	feature.head.flags = VFIO_DEVICE_FEATURE_SET | VFIO_DEVICE_FEATURE_LOW_POWER_EXIT;
	must(ioctl(v->device, VFIO_DEVICE_FEATURE, &feature));
	may_sleep(false);
}

static const struct touch {
	const char *name;
	void (*touches)(struct vfio *v);
	int want;
} touches[] = {
	{ "nothing", nothing, 0 },
	{ "the memory bit", memory_on, 0 },
	{ "a load from the BAR", load, 1 },
	{ "pread() of the BAR", bar_pread, 1 },
	{ "pwrite() to the BAR", bar_pwrite, 1 },
	{ "an ioeventfd", ioeventfd, 1 },
	{ "a write to the configuration", config_write, 1 },
	{ "a write beside all capabilities", config_beside, 1 },
	{ "bus mastering", master, 1 },
	{ "bus mastering that was held", held_master, 1 },
	{ "an interrupt", interrupts, 1 },
	{ "an eventfd for errors", listen_for_errors, 0 },
	{ "an error on the bus", bus_error, 1 },
	{ "a sleep", asleep, 1 },
	{ "low power", low_power, 1 },
};

/* An untouched VF is opened without a reset, and then touched and reset. */
static void asked(const struct touch *t)
{
	struct vfio v = vfio_attach(bdf);
	int before = calls(), opened;

	vfio_open(&v, bdf);
	opened = calls() - before;
	t->touches(&v);
	before = calls();
	must(ioctl(v.device, VFIO_DEVICE_RESET));
	ksft_test_result(!opened && calls() - before == t->want,
			 "after %s: %d resets at its opening, %d when asked, %d are wanted\n",
			 t->name, opened, calls() - before, t->want);
	vfio_close(&v);
}

/* When it is closed it cannot be reset: it is when it is opened again. */
static void not_closed(void)
{
	char path[128], methods[64] = "";
	struct vfio v = vfio_attach(bdf);
	int fd, before;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/reset_method", bdf);
	fd = must(open(path, O_RDONLY));
	must(read(fd, methods, sizeof(methods) - 1));
	close(fd);
	vfio_open(&v, bdf);
	tell(path, "\n");
	vfio_close(&v);
	tell(path, methods);
	before = calls();
	v = vfio_attach(bdf);
	vfio_open(&v, bdf);
	ksft_test_result(calls() - before == 1, "not reset when closed: %d resets when opened\n",
			 calls() - before);
	vfio_close(&v);
}

/* What the first vector of the VF's table of interrupts writes: 0 after a reset. */
static volatile uint32_t *vector(struct vfio *v)
{
	uint32_t table;

	vfio_open(v, bdf);
	memory_on(v);
	must(pread(v->device, &table, 4,
		   v->config + capability(v, PCI_CAP_ID_MSIX) + PCI_MSIX_TABLE));
	if (table & PCI_MSIX_TABLE_BIR)
		ksft_exit_fail_msg("the table is not in BAR 0\n");
	return (uint32_t *)(v->bar + table + PCI_MSIX_ENTRY_DATA);
}

/* Its owner is killed, and the next finds the register as it is after a reset. */
static void left(void)
{
	pid_t child = must(fork());
	volatile uint32_t *at;
	struct vfio v;
	uint32_t is;
	int status;

	if (!child) {
		v = vfio_attach(bdf);
		at = vector(&v);
		*at = 0x4041;
		_exit(*at == 0x4041 ? raise(SIGKILL) : 1);
	}
	must(waitpid(child, &status, 0));
	v = vfio_attach(bdf);
	is = *vector(&v);
	ksft_test_result(WIFSIGNALED(status) && !is,
			 "a register that the last owner %s reads %#x\n",
			 WIFSIGNALED(status) ? "had written" : "could not write", is);
	vfio_close(&v);
}

int main(void)
{
	size_t n = sizeof(touches) / sizeof(*touches);
	struct vfio v;

	bdf = device_under_test();
	ksft_print_header();
	if (!may_sleep(false))
		n--;	/* low power is the last */
	ksft_set_plan(n + 2);
	set_parameter("vfio_pci_core/parameters/elide_reset", true);
	count_calls("pci_try_reset_function");	/* but when a device is closed */
	v = vfio_attach(bdf);	/* it may be new to vfio, and is reset when it is closed */
	vfio_open(&v, bdf);
	vfio_close(&v);
	for (size_t i = 0; i < n; i++)
		asked(&touches[i]);
	not_closed();
	left();
	count_no_calls();
	may_sleep(true);
	set_parameter("vfio_pci_core/parameters/elide_reset", false);
	ksft_finished();
}
