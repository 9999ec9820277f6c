// SPDX-License-Identifier: GPL-2.0-only
/*
 * A registered memory: one memfd, from FASTIOVD_REGISTER to the last close.
 *
 * FASTIOVD_TOUCHMAP is shmem's and vfio's work altogether; here is only counted
 * that the host can back it.  FASTIOVD_TABLE is in table.c, and zeroed in the
 * background as the rest is, which is about FASTIOVD_PAGECACHE.
 *
 * The kernel proper keeps the promise that nobody sees a page before it is zeroed:
 * shmem zeroes at the first touch, vfio before a device masters the bus.  Nothing
 * here is needed for that.  This makes it cheap: pages are zeroed in the
 * background meanwhile, so that the first touch and the device find it done.
 *
 * The background thread belongs to the process whose DMA mapping pinned the first
 * page (as a vhost worker belongs to its owner), so its time is that process's and
 * its cgroup's, and it dies with it.  A thread cannot be made where pages are
 * pinned, under vfio's and the address space's locks; it is made when the process
 * returns to user space.
 *
 * Who is about to make a thread holds the registration's file.  Where the process
 * of a thread was killed, the next mapping makes another.
 */
#include <linux/file.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/pagevec.h>
#include <linux/sched/signal.h>
#include <linux/sched/vhost_task.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/task_work.h>
#include <linux/workqueue.h>

#include "memory.h"
#include "table.h"
#define CREATE_TRACE_POINTS
#include "trace.h"

struct memory {
	struct list_head list;
	struct file *file;
	struct file *registration;
	u32 policy;
	u32 flags;
	pid_t registrant;

	struct table *table;	/* of FASTIOVD_TABLE */
	struct shmem_deferred deferred;
	unsigned long state;
#define MEMORY_PINNED	0	/* pages were pinned; a thread is there or coming */
#define MEMORY_AGAIN	1	/* pages were pinned since the thread began */

	struct callback_head start;
	struct work_struct stop;
	struct vhost_task *thread;
	struct vhost_task *killed;	/* the one before, to be let go */
	bool walking;		/* the thread is in the middle of a pass */
	pgoff_t next;		/* where it goes on */
	atomic64_t background;	/* bytes it zeroed */
};

static LIST_HEAD(memories);
static DEFINE_MUTEX(memories_lock);
static struct workqueue_struct *memory_stops;

static void memory_free(struct memory *m)
{
	if (m->table)
		table_free(m->table);
	fput(m->file);
	kfree(m);
}

/*
 * Visits what is allocated, a batch at a time: calls @each for every folio from
 * *@next on and leaves there where to go on.  Returns whether there is more.
 */
static bool memory_walk(struct memory *m, pgoff_t *next,
			void (*each)(struct folio *folio, void *arg), void *arg)
{
	struct folio_batch batch;
	unsigned int i, n;

	folio_batch_init(&batch);
	n = filemap_get_folios(m->file->f_mapping, next, ULONG_MAX - 1, &batch);
	for (i = 0; i < n; i++)
		each(batch.folios[i], arg);
	folio_batch_release(&batch);
	cond_resched();
	return n;
}

static bool memory_is_zeroed(struct memory *m, struct folio *folio)
{
	return folio_test_uptodate(folio) && (!m->table || table_is_zeroed(m->table, folio));
}

static void zero_one(struct folio *folio, void *arg)
{
	struct memory *m = arg;

	if (!folio_test_uptodate(folio))
		shmem_zero_deferred(folio);
	if (m->table)
		table_zero(m->table, folio);
}

static void zero_one_in_background(struct folio *folio, void *arg)
{
	struct memory *m = arg;

	if (memory_is_zeroed(m, folio))
		return;
	zero_one(folio, m);
	atomic64_add(folio_size(folio), &m->background);
}

/*
 * A turn of the background thread; false lets it sleep until it is woken.  It is
 * called as one that is about to sleep, and looked for a stop after it became so:
 * where there is nothing to do it has to stay so, or the wake-up of a stop is lost.
 */
static bool memory_background(void *data)
{
	struct memory *m = data;

	if (!m->walking && !test_and_clear_bit(MEMORY_AGAIN, &m->state))
		return false;
	__set_current_state(TASK_RUNNING);
	m->walking = memory_walk(m, &m->next, zero_one_in_background, m);
	if (!m->walking) {
		m->next = 0;
		trace_fastiovd_background(m->registrant,
					  atomic64_read(&m->background));
	}
	return true;
}

/* Whoever needs a page zeroes it, until there is another thread. */
static void memory_background_killed(void *data)
{
	struct memory *m = data;

	m->killed = m->thread;
	smp_store_release(&m->thread, NULL);	/* for who stops it */
	smp_mb__before_atomic();		/* and for the next memory_pinned() */
	clear_bit(MEMORY_PINNED, &m->state);
}

static void memory_start_background(struct callback_head *work)
{
	struct memory *m = container_of(work, struct memory, start);
	struct vhost_task *thread = ERR_PTR(-EINTR);

	if (m->killed) {
		synchronize_rcu();	/* memory_pinned() may be waking it */
		vhost_task_stop(m->killed);
		m->killed = NULL;
	}
	if (!(current->flags & PF_EXITING))
		thread = vhost_task_create(memory_background,
					   memory_background_killed, m, "fastiovd");
	if (IS_ERR(thread)) {	/* a signal came first, perhaps: at the next mapping */
		clear_bit(MEMORY_PINNED, &m->state);
	} else {
		smp_store_release(&m->thread, thread);	/* for memory_pinned() */
		vhost_task_start(thread);
	}
	fput(m->registration);
}

/* Called by shmem, under RCU and whatever locks its caller holds. */
static void memory_pinned(struct shmem_deferred *deferred,
			  struct vm_area_struct *vma, struct folio *folio)
{
	struct memory *m = container_of(deferred, struct memory, deferred);
	struct vhost_task *thread;
	struct file *registration;

	if (m->table)
		table_pinned(m->table, vma, folio);
	if (!(m->flags & FASTIOVD_BACKGROUND))
		return;
	set_bit(MEMORY_AGAIN, &m->state);
	/* A thread that is not there yet finds these pages at its first pass. */
	smp_mb__after_atomic();
	thread = smp_load_acquire(&m->thread);	/* as memory_start_background() left it */
	if (thread) {
		vhost_task_wake(thread);
	} else if (!test_and_set_bit(MEMORY_PINNED, &m->state)) {
		registration = get_file_active(&m->registration);
		if (registration && task_work_add(current, &m->start, TWA_RESUME)) {
			clear_bit(MEMORY_PINNED, &m->state);
			fput(registration);
		}
	}
}

/* A thread whose process is stopped stops when that goes on: nobody's close() waits. */
static void memory_stop_background(struct work_struct *work)
{
	struct memory *m = container_of(work, struct memory, stop);

	vhost_task_stop(smp_load_acquire(&m->thread) ?: m->killed);	/* as it was killed */
	memory_free(m);
}

/* Whether the host can give all FASTIOVD_TOUCHMAP what they do not have yet, and m too. */
static bool memory_can_back(struct memory *m)
{
	long pages = i_size_read(file_inode(m->file)) >> PAGE_SHIFT;
	struct memory *other;

	list_for_each_entry(other, &memories, list) {
		struct inode *inode = file_inode(other->file);

		if (other->policy == FASTIOVD_TOUCHMAP)
			pages += (i_size_read(inode) >> PAGE_SHIFT) -
				 (READ_ONCE(inode->i_blocks) >> (PAGE_SHIFT - 9));
	}
	return pages <= si_mem_available();
}

static int memory_defer(struct memory *m)
{
	int ret;

	switch (m->policy) {
	case FASTIOVD_PAGECACHE:
		if (m->flags & ~FASTIOVD_BACKGROUND)
			return -EINVAL;
		return shmem_set_deferred(m->file, &m->deferred);
	case FASTIOVD_TABLE:
		if (m->flags & ~FASTIOVD_BACKGROUND)
			return -EINVAL;
		m->table = table_new(m->file);
		if (IS_ERR(m->table))
			return PTR_ERR(m->table);
		ret = shmem_set_deferred(m->file, &m->deferred);
		if (ret) {
			table_end(m->table);
			table_free(m->table);
		}
		return ret;
	case FASTIOVD_TOUCHMAP:
		if (m->flags)
			return -EINVAL;
		if (!memory_can_back(m))
			return -ENOMEM;
		return shmem_set_touch(m->file);
	}
	return -EINVAL;
}

/*
 * Takes over the caller's reference to @file if it succeeds.  The memory lasts until
 * memory_unregister(), as @registration is released.
 */
struct memory *memory_register(struct file *file, u32 policy, u32 flags,
			       struct file *registration)
{
	struct memory *m = kzalloc(sizeof(*m), GFP_KERNEL_ACCOUNT);
	int ret;

	if (!m)
		return ERR_PTR(-ENOMEM);
	init_task_work(&m->start, memory_start_background);
	INIT_WORK(&m->stop, memory_stop_background);
	m->file = file;
	m->registration = registration;
	m->policy = policy;
	m->flags = flags;
	m->registrant = task_tgid_nr(current);
	m->deferred.pinned = memory_pinned;

	mutex_lock(&memories_lock);
	ret = memory_defer(m);
	if (!ret)
		list_add_tail(&m->list, &memories);
	mutex_unlock(&memories_lock);
	if (ret) {
		kfree(m);
		return ERR_PTR(ret);
	}
	trace_fastiovd_register(m->registrant, i_size_read(file_inode(file)));
	return m;
}

void memory_unregister(struct memory *m)
{
	pgoff_t next = 0;

	mutex_lock(&memories_lock);
	list_del(&m->list);
	mutex_unlock(&memories_lock);

	if (m->policy != FASTIOVD_TOUCHMAP)	/* memory_pinned() is not called any more */
		shmem_set_deferred(m->file, NULL);
	if (m->table) {
		while (memory_walk(m, &next, zero_one, m))
			;	/* while a guest's page faults still wait for it */
		table_end(m->table);
	}
	if (smp_load_acquire(&m->thread) || m->killed)	/* as it was killed */
		queue_work(memory_stops, &m->stop);
	else
		memory_free(m);
}

int memory_zero(struct memory *m)
{
	pgoff_t next = 0;

	while (memory_walk(m, &next, zero_one, m))
		if (signal_pending(current))
			return -EINTR;
	return 0;
}

int memory_instant(struct memory *m, const struct fastiovd_range *range)
{
	return m->table ? table_instant(m->table, range) : -EINVAL;
}

struct count {
	struct memory *m;
	struct fastiovd_stat *stat;
};

static void count_one(struct folio *folio, void *arg)
{
	struct count *c = arg;

	c->stat->resident += folio_size(folio);
	if (memory_is_zeroed(c->m, folio))
		c->stat->zeroed += folio_size(folio);
}

void memory_stat(struct memory *m, struct fastiovd_stat *stat)
{
	struct count c = { m, stat };
	pgoff_t next = 0;

	*stat = (struct fastiovd_stat) {
		.size = sizeof(*stat),
		.bytes = i_size_read(file_inode(m->file)),
	};
	while (memory_walk(m, &next, count_one, &c))
		;
	stat->background = atomic64_read(&m->background);
}

/* One line for each registration, as the operator reads it in debugfs. */
void memory_show_all(struct seq_file *s)
{
	struct fastiovd_stat stat;
	struct memory *m;

	seq_puts(s, "# registrant bytes resident zeroed background\n");
	mutex_lock(&memories_lock);
	list_for_each_entry(m, &memories, list) {
		memory_stat(m, &stat);
		seq_printf(s, "%d %llu %llu %llu %llu\n", m->registrant, stat.bytes,
			   stat.resident, stat.zeroed, stat.background);
	}
	mutex_unlock(&memories_lock);
}

int memory_init(void)
{
	memory_stops = alloc_workqueue("fastiovd", WQ_UNBOUND, 0);
	return memory_stops ? 0 : -ENOMEM;
}

void memory_exit(void)
{
	destroy_workqueue(memory_stops);
	/* for who is at the end of memory_start_background() */
	synchronize_rcu_tasks();
}
