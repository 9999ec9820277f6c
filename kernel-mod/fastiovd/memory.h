/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef FASTIOVD_MEMORY_H
#define FASTIOVD_MEMORY_H

#include <linux/fs.h>
#include <linux/seq_file.h>

#include <uapi/linux/fastiovd.h>

struct memory;

int memory_init(void);
void memory_exit(void);
struct memory *memory_register(struct file *file, u32 policy, u32 flags,
			       struct file *registration);
void memory_unregister(struct memory *m);
int memory_zero(struct memory *m);
int memory_instant(struct memory *m, const struct fastiovd_range *range);
void memory_stat(struct memory *m, struct fastiovd_stat *stat);
void memory_show_all(struct seq_file *s);

#endif
