# SPDX-License-Identifier: GPL-2.0-or-later
# The devices of the patched QEMU, on top of none: what fastiov's microVMs have, and image regions.
CONFIG_Q35=y
CONFIG_SERIAL_ISA=y
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_BLK=y
CONFIG_VHOST_VSOCK=y
CONFIG_VFIO_PCI=y
CONFIG_IOMMUFD=y
CONFIG_NVDIMM=y
CONFIG_VIRTIO_PMEM=y
