/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM fastiovd

#if !defined(_FASTIOVD_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _FASTIOVD_TRACE_H

#include <linux/tracepoint.h>

DECLARE_EVENT_CLASS(fastiovd_memory,
	TP_PROTO(pid_t registrant, u64 bytes),
	TP_ARGS(registrant, bytes),
	TP_STRUCT__entry(
		__field(pid_t, registrant)
		__field(u64, bytes)
	),
	TP_fast_assign(
		__entry->registrant = registrant;
		__entry->bytes = bytes;
	),
	TP_printk("registrant %d bytes %llu", __entry->registrant, __entry->bytes)
);

/* A memory of so many bytes was registered. */
DEFINE_EVENT(fastiovd_memory, fastiovd_register,
	TP_PROTO(pid_t registrant, u64 bytes), TP_ARGS(registrant, bytes));

/* The background thread found nothing more to zero; so many bytes it zeroed in all. */
DEFINE_EVENT(fastiovd_memory, fastiovd_background,
	TP_PROTO(pid_t registrant, u64 bytes), TP_ARGS(registrant, bytes));

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
