# SPDX-License-Identifier: GPL-2.0-or-later
# The devices of the QEMU that emulates testbeds, on top of none.
CONFIG_Q35=y
CONFIG_VTD=y
CONFIG_PCIE_PORT=y
CONFIG_SERIAL_ISA=y
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_BLK=y
CONFIG_VIRTIO_NET=y
CONFIG_VIRTIO_RNG=y
CONFIG_VIRTIO_9P=y
# A busy machine delays what measures the speed of the TSC by the PIT. Without an HPET Linux then
# gives up the TSC, and the clocks of nested guests stand still while others run.
CONFIG_HPET=y
CONFIG_IGB_PCI_EXPRESS=y
# igb is linked with what belongs to e1000e.
CONFIG_E1000E_PCI_EXPRESS=y
CONFIG_NVME_PCI=y
CONFIG_EDU=y
