package vf

import "testing"

func TestRefusedDevice(t *testing.T) {
	for record, want := range map[string]string{
		"3,1234,5678,-;DMAR: [DMA Read NO_PASID] Request device [01:10.0] fault addr 0xe00000 [fault reason 0x06] PTE Read access is not set": "0000:01:10.0",
		"3,1,2,c;DMAR: [DMA Write PASID 4] Request device [0001:c3:00.1] fault addr 0x0 [fault reason 0x05] PTE Write access is not set":      "0001:c3:00.1",
		"1,7,9,-;vfio-pci 0000:01:10.0: AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:01:10.0 domain=0x0012 address=0x1000 flags=0x0020]":   "0000:01:10.0",
		"12,1,2,-;DMAR: [DMA Read NO_PASID] Request device [01:10.0] fault addr 0x0":                                                          "", // of a process
		"3,1,2,-;DMAR: DRHD: handling fault status reg 2":                                                                                     "",
		"DMAR: [DMA Read NO_PASID] Request device [01:10.0]":                                                                                  "",
		"": "",
	} {
		if got, ok := refusedDevice(record); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", record, got, ok)
		}
	}
}
