/* SPDX-License-Identifier: GPL-2.0-only */
/* QEMU's edu, a device that copies between memory and a buffer of its own as it is told. */
#ifndef SELFTEST_EDU_H
#define SELFTEST_EDU_H

#include "vfio.h"

#define EDU_BUFFER 0x40000UL
#define EDU_SOURCE 0x80
#define EDU_TARGET 0x88
#define EDU_LENGTH 0x90
#define EDU_COMMAND 0x98
#define EDU_START 1
#define EDU_TO_MEMORY 2

static inline void edu_copy(struct vfio *v, uint64_t source, uint64_t target, bool to_memory)
{
	volatile uint64_t *command = (volatile uint64_t *)(v->bar + EDU_COMMAND);

	*(volatile uint64_t *)(v->bar + EDU_SOURCE) = source;
	*(volatile uint64_t *)(v->bar + EDU_TARGET) = target;
	*(volatile uint64_t *)(v->bar + EDU_LENGTH) = PAGE;
	*command = EDU_START | (to_memory ? EDU_TO_MEMORY : 0);
	for (int i = 0; i < 500; i++) {
		if (!(*command & EDU_START))
			return;
		usleep(10000);
	}
	ksft_exit_fail_msg("edu does not finish\n");
}

#endif
