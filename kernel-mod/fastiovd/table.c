// SPDX-License-Identifier: GPL-2.0-only
/*
 * FASTIOVD_TABLE: zeroing on a virtual processor's first touch, as it was first
 * published; to measure the other policies against.  It is not safe.
 *
 * Pages that a DMA mapping allocates are shown to everybody as they are, and
 * entered in a table.  At a guest's page fault KVM has the page zeroed, if it is
 * in the table, before the guest sees it.  The table has two tiers: a VM, by its
 * address space, and of its memory a bit for each page.
 *
 * Nobody else looks into the table.  A device, the VMM, vhost or another process
 * find what the page held before, and what they write there is wiped when the
 * guest first touches it.  What a VMM writes before its guest runs has to be named
 * therefore, and is zeroed when it is pinned: the instant pages.
 *
 *	tables_lock	who is in tables
 *	t->lock		bits, and the zeroing of what they stand for: a second
 *			virtual processor waits for the first
 */
#include <linux/bitmap.h>
#include <linux/fcntl.h>
#include <linux/hashtable.h>
#include <linux/highmem.h>
#include <linux/hugetlb.h>
#include <linux/kvm_host.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/tracepoint.h>

#include "table.h"

struct table {
	struct hlist_node node;		/* in tables, once it is mapped */
	struct file *file;
	unsigned long npages;
	struct mm_struct *mm;		/* the VM's */
	unsigned long start;		/* where that has the file's first byte */
	spinlock_t lock;
	unsigned long *unclean;		/* first pages of folios that are not zeroed */
	unsigned long *instant;		/* pages that are zeroed when they are pinned */
};

static bool allow_table;
module_param_unsafe(allow_table, bool, 0644);
MODULE_PARM_DESC(allow_table,
		 "For measuring: Y allows FASTIOVD_TABLE, whose guests' devices read old data of others");

static DEFINE_HASHTABLE(tables, 8);
static DEFINE_SPINLOCK(tables_lock);

/* KVM's page faults are listened to as long as there is a table. */
static DEFINE_MUTEX(listening_lock);
static unsigned int listening;

static void clear_folio(struct folio *folio)
{
	long i, n = folio_nr_pages(folio);

	for (i = 0; i < n; i++)
		clear_highpage(folio_page(folio, i));
	flush_dcache_folio(folio);
}

bool table_is_zeroed(struct table *t, struct folio *folio)
{
	/* fallocate() may have put folios beyond the end of the file */
	return folio->index >= t->npages || !test_bit(folio->index, t->unclean);
}

void table_zero(struct table *t, struct folio *folio)
{
	spin_lock(&t->lock);
	if (!table_is_zeroed(t, folio)) {
		clear_folio(folio);
		smp_mb__before_atomic();	/* for who finds the bit cleared */
		clear_bit(folio->index, t->unclean);
	}
	spin_unlock(&t->lock);
}

/* A guest's page fault, with two-dimensional paging. */
static void table_touched(void *unused, struct kvm_vcpu *vcpu, u64 gpa, u64 error_code)
{
	unsigned long addr = kvm_vcpu_gfn_to_hva(vcpu, gpa_to_gfn(gpa));
	struct folio *folio;
	struct table *t;

	if (kvm_is_error_hva(addr))
		return;
	hash_for_each_possible_rcu(tables, t, node, (unsigned long)current->mm) {
		if (t->mm != current->mm || addr - t->start >= t->npages << PAGE_SHIFT)
			continue;
		folio = filemap_get_folio(t->file->f_mapping,
					  (addr - t->start) >> PAGE_SHIFT);
		if (IS_ERR(folio))
			continue;
		table_zero(t, folio);
		folio_put(folio);
	}
}

/* The first mapping makes a table that of a VM.  Returns whether @vma is its. */
static bool table_is_of(struct table *t, struct vm_area_struct *vma)
{
	unsigned long start = vma->vm_start - (vma->vm_pgoff << PAGE_SHIFT);

	if (!t->mm) {
		mmgrab(vma->vm_mm);
		t->start = start;
		t->mm = vma->vm_mm;
		spin_lock(&tables_lock);
		hash_add_rcu(tables, &t->node, (unsigned long)t->mm);
		spin_unlock(&tables_lock);
	}
	return t->mm == vma->vm_mm && t->start == start;
}

/* Called by shmem, under RCU, with the folio locked. */
void table_pinned(struct table *t, struct vm_area_struct *vma, struct folio *folio)
{
	unsigned long end = min(folio_next_index(folio), t->npages);
	bool ours;

	spin_lock(&t->lock);
	ours = table_is_of(t, vma);
	if (!folio_test_uptodate(folio)) {
		/* hugetlbfs files grow by being mapped, whatever their seals */
		if (!ours || folio->index >= t->npages ||
		    find_next_bit(t->instant, end, folio->index) < end)
			clear_folio(folio);
		else
			set_bit(folio->index, t->unclean);
		folio_mark_uptodate(folio);
	}
	spin_unlock(&t->lock);
}

int table_instant(struct table *t, const struct fastiovd_range *range)
{
	u64 size = (u64)t->npages << PAGE_SHIFT;
	unsigned long first, last;
	int ret = 0;

	if (!range->length || range->offset >= size || range->length > size - range->offset)
		return -EINVAL;
	first = range->offset >> PAGE_SHIFT;
	last = (range->offset + range->length - 1) >> PAGE_SHIFT;
	spin_lock(&t->lock);
	if (t->mm)
		ret = -EBUSY;
	else
		bitmap_set(t->instant, first, last - first + 1);
	spin_unlock(&t->lock);
	return ret;
}

static int listen(void)
{
	int ret = 0;

	mutex_lock(&listening_lock);
	if (!listening)
		ret = tracepoint_probe_register(&__tracepoint_kvm_page_fault, table_touched, NULL);
	if (!ret)
		listening++;
	mutex_unlock(&listening_lock);
	return ret;
}

static void stop_listening(void)
{
	mutex_lock(&listening_lock);
	if (!--listening)
		tracepoint_probe_unregister(&__tracepoint_kvm_page_fault, table_touched, NULL);
	mutex_unlock(&listening_lock);
	tracepoint_synchronize_unregister();	/* nor is a fault going on */
}

static bool is_memfd_of_fixed_size(struct inode *inode)
{
	unsigned int seals = 0;

	if (shmem_mapping(inode->i_mapping))
		seals = SHMEM_I(inode)->seals;
#ifdef CONFIG_HUGETLBFS
	else if (inode->i_sb->s_magic == HUGETLBFS_MAGIC)
		seals = HUGETLBFS_I(inode)->seals;
#endif
	return !(~seals & (F_SEAL_SHRINK | F_SEAL_GROW));
}

/* There is a bit for each of a memfd's pages. */
struct table *table_new(struct file *file)
{
	struct inode *inode = file_inode(file);
	unsigned long npages = DIV_ROUND_UP(i_size_read(inode), PAGE_SIZE);
	struct table *t;
	int ret = -ENOMEM;

	if (!READ_ONCE(allow_table))
		return ERR_PTR(-EPERM);
	if (!is_memfd_of_fixed_size(inode))
		return ERR_PTR(-EINVAL);
	if (npages > totalram_pages())
		return ERR_PTR(ret);
	t = kzalloc(sizeof(*t), GFP_KERNEL_ACCOUNT);
	if (!t)
		return ERR_PTR(ret);
	t->file = file;
	t->npages = npages;
	spin_lock_init(&t->lock);
	t->unclean = kvcalloc(BITS_TO_LONGS(t->npages), sizeof(long), GFP_KERNEL_ACCOUNT);
	t->instant = kvcalloc(BITS_TO_LONGS(t->npages), sizeof(long), GFP_KERNEL_ACCOUNT);
	if (t->unclean && t->instant)
		ret = listen();
	if (!ret)
		return t;
	kvfree(t->unclean);
	kvfree(t->instant);
	kfree(t);
	return ERR_PTR(ret);
}

/* Nothing is pinned for it any more, and after this nothing looked up. */
void table_end(struct table *t)
{
	if (t->mm) {
		spin_lock(&tables_lock);
		hash_del_rcu(&t->node);
		spin_unlock(&tables_lock);
	}
	stop_listening();
}

void table_free(struct table *t)
{
	if (t->mm)
		mmdrop(t->mm);
	kvfree(t->unclean);
	kvfree(t->instant);
	kfree(t);
}
