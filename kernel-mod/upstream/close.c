// SPDX-License-Identifier: GPL-2.0-only
/*
 * Of several VFs of one PF that are closed at the same time, vfio-pci resets only those that find
 * their bridge unlocked.
 *
 *	gcc -O2 -Wall -Wextra -Werror -static -o close close.c
 *	./close 0000:01:10.0 0000:01:10.2 ...
 *
 * The VFs are bound to vfio-pci, each in an IOMMU group of its own. A kernel probe (CONFIG_KPROBES)
 * counts the resets. A VF that is closed alone must be reset.
 *
 * Exits with 1 if a VF was not reset, 0 if all were, 4 if it cannot tell.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing/"
#define ROUNDS 10

static void tell(const char *file, const char *text)
{
	int fd = open(file, O_WRONLY | O_APPEND);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		err(4, "%s", file);
	close(fd);
}

static void count_resets(void)
{
	mount("tracefs", TRACING, "tracefs", 0, NULL);	/* it may be there */
	tell(TRACING "kprobe_events", "p:close/reset __pci_reset_function_locked");
	tell(TRACING "events/close/reset/enable", "1");
}

static void count_no_resets(void)
{
	tell(TRACING "events/close/reset/enable", "0");
	tell(TRACING "kprobe_events", "-:close/reset");
}

static int resets(void)
{
	FILE *f = fopen(TRACING "kprobe_profile", "r");
	char name[64];
	int n = -1, hits;

	if (!f)
		err(4, TRACING "kprobe_profile");
	while (fscanf(f, "%63s %d %*d", name, &hits) == 2)
		if (!strcmp(name, "reset"))
			n = hits;
	fclose(f);
	return n;
}

/* Opens a VF, says so through ready, and closes it when the other end of go is closed. */
static void open_and_close(const char *bdf, int ready, int go)
{
	char path[128], target[128] = "";
	int container, group, device;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/iommu_group", bdf);
	if (readlink(path, target, sizeof(target) - 1) < 0)
		err(4, "%s", path);
	snprintf(path, sizeof(path), "/dev/vfio/%s", strrchr(target, '/') + 1);
	container = open("/dev/vfio/vfio", O_RDWR);
	group = open(path, O_RDWR);
	if (container < 0 || group < 0)
		err(4, "%s", path);
	if (ioctl(group, VFIO_GROUP_SET_CONTAINER, &container) ||
	    ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU))
		err(4, "%s: its container", bdf);
	device = ioctl(group, VFIO_GROUP_GET_DEVICE_FD, bdf);
	if (device < 0)
		err(4, "opening %s", bdf);
	if (write(ready, "", 1) != 1 || read(go, path, 1) != 0)
		err(4, "waiting for the others");
	close(device);
}

/* Opens the VFs in a process each, closes them all at once, and returns how many were not reset. */
static int close_at_once(int n, char **vfs)
{
	int ready[2], go[2], status, before;
	char byte;

	if (pipe(ready) || pipe(go))
		err(4, "pipe");
	for (int i = 0; i < n; i++) {
		pid_t child = fork();

		if (child < 0)
			err(4, "fork");
		if (!child) {
			close(go[1]);
			open_and_close(vfs[i], ready[1], go[0]);
			_exit(0);
		}
	}
	close(ready[1]);
	for (int i = 0; i < n; i++)
		if (read(ready[0], &byte, 1) != 1)
			errx(4, "a VF was not opened");
	before = resets();
	close(ready[0]);
	close(go[0]);
	close(go[1]);
	while (wait(&status) > 0)
		if (status)
			errx(4, "a VF was not closed");
	return before + n - resets();
}

int main(int argc, char **argv)
{
	int n = argc - 1, skipped = 0;

	if (n < 2)
		errx(4, "usage: %s VF VF...", argv[0]);
	count_resets();
	if (close_at_once(1, argv + 1))
		errx(4, "closing %s alone does not reset it", argv[1]);
	for (int i = 0; i < ROUNDS; i++)
		skipped += close_at_once(n, argv + 1);
	count_no_resets();
	printf("of %d closes, %d at once, %d made no reset\n", ROUNDS * n, n, skipped);
	return skipped ? 1 : 0;
}
