/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef FASTIOVD_TABLE_H
#define FASTIOVD_TABLE_H

#include <linux/mm.h>
#include <linux/tracepoint-defs.h>

#include <uapi/linux/fastiovd.h>

/* Exported by KVM, whose header of it is its own. */
extern struct tracepoint __tracepoint_kvm_page_fault;

struct table;

struct table *table_new(struct file *file);
void table_end(struct table *t);
void table_free(struct table *t);
int table_instant(struct table *t, const struct fastiovd_range *range);
void table_pinned(struct table *t, struct vm_area_struct *vma, struct folio *folio);
bool table_is_zeroed(struct table *t, struct folio *folio);
void table_zero(struct table *t, struct folio *folio);

#endif
