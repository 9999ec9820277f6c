/* SPDX-License-Identifier: GPL-2.0-only */
/* How often the kernel calls one of its functions. */
#ifndef SELFTEST_KPROBE_H
#define SELFTEST_KPROBE_H

#include "vfio.h"

#define TRACING "/sys/kernel/tracing/"
#define COUNTER "counted"

/* Counts the calls from now on. */
static inline void count_calls(const char *function)
{
	char probe[128];

	snprintf(probe, sizeof(probe), "p:fastiov/" COUNTER " %s", function);
	tell(TRACING "kprobe_events", probe);
	tell(TRACING "events/fastiov/" COUNTER "/enable", "1");
}

static inline void count_no_calls(void)
{
	tell(TRACING "events/fastiov/" COUNTER "/enable", "0");
	tell(TRACING "kprobe_events", "-:fastiov/" COUNTER);
}

static inline int calls(void)
{
	FILE *f = fopen(TRACING "kprobe_profile", "r");
	char name[64];
	int n = -1, hits;

	while (f && fscanf(f, "%63s %d %*d", name, &hits) == 2)
		if (!strcmp(name, COUNTER))
			n = hits;
	if (f)
		fclose(f);
	return n;
}

#endif
