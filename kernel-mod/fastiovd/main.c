// SPDX-License-Identifier: GPL-2.0-only
/*
 * fastiovd: the device node, its ioctls and its file in debugfs.
 *
 * include/uapi/linux/fastiovd.h is the manual.  A registration is a file of its
 * own, so the kernel ends it when its owner does, however that happens.
 */
#include <linux/anon_inodes.h>
#include <linux/debugfs.h>
#include <linux/file.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "memory.h"

static long registration_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct fastiovd_stat stat, __user *user = (void __user *)arg;
	struct memory *m = file->private_data;
	struct fastiovd_range range;

	switch (cmd) {
	case FASTIOVD_STAT:
		if (copy_from_user(&stat, user, offsetof(struct fastiovd_stat, bytes)))
			return -EFAULT;
		if (stat.size != sizeof(stat) || stat.reserved)
			return -EINVAL;
		memory_stat(m, &stat);
		return copy_to_user(user, &stat, sizeof(stat)) ? -EFAULT : 0;
	case FASTIOVD_ZERO:
		return memory_zero(m);
	case FASTIOVD_INSTANT:
		if (copy_from_user(&range, (void __user *)arg, sizeof(range)))
			return -EFAULT;
		return memory_instant(m, &range);
	}
	return -ENOTTY;
}

static int registration_release(struct inode *inode, struct file *file)
{
	if (file->private_data)
		memory_unregister(file->private_data);
	return 0;
}

static const struct file_operations registration_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = registration_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.release = registration_release,
};

static long fastiovd_register(struct fastiovd_register __user *user)
{
	struct file *file, *registration;
	struct fastiovd_register r;
	struct memory *m;
	long fd;

	if (copy_from_user(&r, user, sizeof(r)))
		return -EFAULT;
	if (r.size != sizeof(r))
		return -EINVAL;
	file = fget(r.memfd);
	if (!file)
		return -EBADF;
	fd = -EACCES;
	if ((file->f_mode & (FMODE_READ | FMODE_WRITE)) != (FMODE_READ | FMODE_WRITE))
		goto err_file;
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		goto err_file;
	registration = anon_inode_getfile("[fastiovd]", &registration_fops, NULL, O_RDWR);
	m = ERR_CAST(registration);
	if (!IS_ERR(m)) {
		m = memory_register(file, r.policy, r.flags, registration);
		if (IS_ERR(m))
			fput(registration);
	}
	if (IS_ERR(m))
		goto err_fd;
	registration->private_data = m;
	fd_install(fd, registration);
	return fd;

err_fd:
	put_unused_fd(fd);
	fd = PTR_ERR(m);
err_file:
	fput(file);
	return fd;
}

static long fastiovd_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	if (cmd != FASTIOVD_REGISTER)
		return -ENOTTY;
	return fastiovd_register((void __user *)arg);
}

static const struct file_operations fastiovd_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = fastiovd_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice fastiovd_dev = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "fastiovd",
	.fops = &fastiovd_fops,
	.mode = 0600,
};

static int registrations_show(struct seq_file *s, void *unused)
{
	memory_show_all(s);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(registrations);

static struct dentry *fastiovd_debugfs;

static int __init fastiovd_init(void)
{
	int ret = memory_init();

	if (ret)
		return ret;
	ret = misc_register(&fastiovd_dev);
	if (ret) {
		memory_exit();
		return ret;
	}
	fastiovd_debugfs = debugfs_create_dir("fastiovd", NULL);
	debugfs_create_file("registrations", 0400, fastiovd_debugfs, NULL, &registrations_fops);
	return 0;
}
module_init(fastiovd_init);

static void __exit fastiovd_exit(void)
{
	debugfs_remove(fastiovd_debugfs);
	misc_deregister(&fastiovd_dev);
	memory_exit();
}
module_exit(fastiovd_exit);

MODULE_DESCRIPTION("Guest memory that devices get before it is zeroed and nobody sees before it is");
MODULE_LICENSE("GPL");
