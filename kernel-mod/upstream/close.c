// SPDX-License-Identifier: GPL-2.0-only
/*
 * Of several VFs of one PF that are closed at the same time, vfio-pci resets only those that find
 * their bridge unlocked.
 *
 *	gcc -O2 -Wall -Wextra -Werror -static -o close close.c
 *	./close 0000:01:10.0 0000:01:10.2 ...
 *
 * The VFs are bound to vfio-pci, each in an IOMMU group of its own. A function level reset takes at
 * least 100 ms, so a close that takes less made none; one that takes longer may have made none
 * either, on a busy machine. A VF that is closed alone must take 100 ms.
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
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RESET_MS 100
#define ROUNDS 10

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/*
 * Opens a VF, says so through ready, waits until the other end of go is closed, and returns how
 * long the close takes.
 */
static double open_and_close(const char *bdf, int ready, int go)
{
	char path[128], target[128] = "";
	int container, group, device;
	double since;

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
	since = now_ms();
	close(device);
	return now_ms() - since;
}

/* Opens the VFs in a process each, closes them all at once, and returns how many were not reset. */
static int close_at_once(int n, char **vfs)
{
	int ready[2], go[2], result[2], skipped = 0;
	double ms;
	char byte;

	if (pipe(ready) || pipe(go) || pipe(result))
		err(4, "pipe");
	for (int i = 0; i < n; i++) {
		pid_t child = fork();

		if (child < 0)
			err(4, "fork");
		if (!child) {
			close(go[1]);
			ms = open_and_close(vfs[i], ready[1], go[0]);
			_exit(write(result[1], &ms, sizeof(ms)) != sizeof(ms));
		}
	}
	close(ready[1]);
	close(result[1]);
	for (int i = 0; i < n; i++)
		if (read(ready[0], &byte, 1) != 1)
			errx(4, "a VF was not opened");
	close(go[0]);
	close(go[1]);
	for (int i = 0; i < n; i++) {
		if (read(result[0], &ms, sizeof(ms)) != sizeof(ms))
			errx(4, "a VF was not closed");
		skipped += ms < RESET_MS;
	}
	while (wait(NULL) > 0)
		;
	return skipped;
}

int main(int argc, char **argv)
{
	int n = argc - 1, skipped = 0;

	if (n < 2)
		errx(4, "usage: %s VF VF...", argv[0]);
	if (close_at_once(1, argv + 1))
		errx(4, "closing %s alone does not reset it", argv[1]);
	for (int i = 0; i < ROUNDS; i++)
		skipped += close_at_once(n, argv + 1);
	printf("of %d closes, %d at once, %d made no reset\n", ROUNDS * n, n, skipped);
	return skipped ? 1 : 0;
}
