package vf

import "testing"

func TestRefusedDevice(t *testing.T) {
	for record, want := range map[string]string{
		"3,1234,5678,-;DMAR: [DMA Read NO_PASID] Request device [01:10.0] fault addr 0xe00000 [fault reason 0x06] PTE Read access is not set":                       "0000:01:10.0",
		"3,1,2,c;DMAR: [DMA Write PASID 4] Request device [0001:c3:00.1] fault addr 0x0 [fault reason 0x05] PTE Write access is not set":                            "0001:c3:00.1",
		"1,7,9,-;vfio-pci 0000:01:10.0: AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:01:10.0 domain=0x0012 address=0x1000 flags=0x0020]":                         "0000:01:10.0",
		"3,1,2,-;DMAR: [DMA Read] Request device [00:02.0] PASID ffffffff fault addr 9bd00000 [fault reason 06] PTE Read access is not set":                         "0000:00:02.0",
		"3,1,2,-;DMAR: [DMA Write NO_PASID] Request device [0x01:0x10.0] fault addr 0x0 [fault reason 0x05] PTE Write access is not set":                            "0000:01:10.0",
		"3,1,2,-;vfio-pci 0000:01:10.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0035 address=0x7fffff00300 flags=0x0000]":                                      "0000:01:10.0",
		"3,1,2,-;ice 0000:c7:00.1: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x002c address=0x4000180000 flags=0x0020]\n SUBSYSTEM=pci\n DEVICE=+pci:0000:c7:00.1": "0000:c7:00.1",
		"3,1,2,-;pci 10000:e1:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0000 address=0x1000 flags=0x0020]":                                                 "10000:e1:00.0",
		"3,1,2,-;AMD-Vi: Event logged [IO_PAGE_FAULT device=08:00.0 domain=0x002c address=0xfffffffdf8000000 flags=0x0008]":                                         "0000:08:00.0",
		"3,1,2,-;iommu ivhd0: AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:01:10.0 domain=0x0012 address=0x1000 flags=0x0020]":                                   "0000:01:10.0",
		"3,1,2,-;iommu ivhd0: AMD-Vi: Event logged [INVALID_DEVICE_REQUEST device=0000:01:10.0 pasid=0x00000 address=0xfffffffdf8000000 flags=0x0a00]":              "0000:01:10.0",
		"4,1,2,-;amd_iommu_report_page_fault: 10432 callbacks suppressed":                                                                                           "",
		"4,1,2,-;dmar_fault: 7702 callbacks suppressed": "",
		// A process wrote this line.
		"12,1,2,-;vfio-pci 0000:01:10.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0035 address=0x0 flags=0x0000]": "",
		// A process wrote this line.
		"12,1,2,-;DMAR: [DMA Read NO_PASID] Request device [01:10.0] fault addr 0x0": "",
		"3,1,2,-;DMAR: DRHD: handling fault status reg 2":                            "",
		"DMAR: [DMA Read NO_PASID] Request device [01:10.0]":                         "",
		"": "",
	} {
		if got, ok := refusedDevice(record); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", record, got, ok)
		}
	}
}
