package filter

import "strings"

// tried are calls as dangerous as the others that some library tries when it starts and can do
// without. They return an error and do not end the VMM, since no VMM with such a library would
// start otherwise.
var tried = strings.Fields("socket personality sysfs")

// dangerous are the calls that no VMM has a use for and that reach far into the kernel or out of
// the room. One of them ends the VMM.
var dangerous = strings.Fields(`
	socketpair connect bind
	ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp process_madvise
	bpf perf_event_open userfaultfd io_uring_enter io_uring_register
	add_key request_key keyctl
	mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
	unshare setns execve execveat fork vfork
	kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff
	iopl ioperm modify_ldt name_to_handle_at open_by_handle_at fanotify_init lookup_dcookie
	quotactl quotactl_fd acct syslog vhangup uselib ustat nfsservctl
	settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname
	migrate_pages move_pages
	shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semctl mq_open mq_unlink
	memfd_secret landlock_create_ruleset`)
