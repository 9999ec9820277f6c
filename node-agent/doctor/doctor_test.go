package doctor

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
)

// machine returns a fake root directory with files by path. A content that begins with → is the
// target of a symbolic link.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		target, isLink := strings.CutPrefix(content, "→")
		var err error
		if isLink {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// with returns a copy of files with more of them.
func with(files map[string]string, more ...string) map[string]string {
	all := map[string]string{}
	for name, content := range files {
		all[name] = content
	}
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

const (
	pf  = "sys/bus/pci/devices/0000:01:00.0/"
	vf0 = "sys/bus/pci/devices/0000:01:10.0/"

	disk = "sys/bus/pci/devices/0000:02:00.0/"
)

const (
	shmem      = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
	holdMaster = "sys/module/vfio_pci_core/parameters/hold_master"
	toAny      = "sys/module/iommu/parameters/defer_to_any"
	table      = "sys/module/fastiovd/parameters/allow_table"
)

var card0 = map[string]string{
	pf + "sriov_totalvfs": "7", pf + "sriov_numvfs": "0", pf + "class": "0x020000",
	pf + "driver":                           "→../../drivers/igb",
	pf + "iommu_group/devices/0000:01:00.0": "", "sys/kernel/iommu_groups/1/x": "",
	"sys/class/iommu/dmar0/x": "",
}

// behind returns card0 behind an IOMMU that has a file.
func behind(unit, file, content string) map[string]string {
	return with(card0, pf+"iommu", "→../../../../virtual/iommu/"+unit,
		"sys/virtual/iommu/"+unit+"/"+file, content)
}

// ours returns a machine with fastiov's kernel and its switches.
func ours(hold, any, allow string) map[string]string {
	return map[string]string{"dev/fastiovd": "", holdMaster: hold, toAny: any, table: allow}
}

func TestChecksOfFiles(t *testing.T) {
	const mountinfo = "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
	for _, c := range []struct {
		name  string
		check func(root string) Finding
		files map[string]string
		want  Verdict
		found string
	}{
		{"iommu", iommu, card0, OK, "dmar0, 1 groups"},
		{"no iommu", iommu, nil, No, "no IOMMU"},
		{"remapped", interrupts, map[string]string{"sys/kernel/irq/1/chip_name": "IO-APIC", "sys/kernel/irq/24/chip_name": "IR-PCI-MSI"}, OK, "remapped"},
		{"not remapped", interrupts, map[string]string{"sys/kernel/irq/1/chip_name": "IO-APIC"}, No, "not remapped"},
		{"accepted", interrupts, map[string]string{"sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts": "Y"}, Note, "told to accept"},
		{"vfio", vfio, map[string]string{"dev/vfio/vfio": "", "sys/bus/pci/drivers/vfio-pci/bind": ""}, OK, "vfio-pci"},
		{"no vfio-pci", vfio, map[string]string{"dev/vfio/vfio": ""}, No, "module vfio-pci"},
		{"card", cards, card0, OK, "0000:01:00.0 (igb, 0 of 7 VFs)"},
		{"no card", cards, nil, Note, "microVMs have taps"},
		{"disk only", cards, with(card0, pf+"class", "0x010802"), Note, "only 0000:01:00.0"},
		{"tap", tap, map[string]string{"dev/net/tun": ""}, OK, "/dev/net/tun"},
		{"no tap", tap, nil, No, "no /dev/net/tun"},
		{"no VFs yet", groups, card0, OK, "will be alone"},
		{"functions together", groups, with(card0, pf+"iommu_group/devices/0000:01:00.1", ""), OK, "will be alone"},
		{"no ACS", groups, with(card0, pf+"iommu_group/devices/0000:00:01.0", ""), No, "lacks ACS"},
		{"VF alone", groups, with(card0, pf+"sriov_numvfs", "1", pf+"virtfn0", "→../0000:01:10.0", vf0+"iommu_group/devices/0000:01:10.0", ""), OK, "1 VFs"},
		{"VF in company", groups, with(card0, pf+"sriov_numvfs", "1", pf+"virtfn0", "→../0000:01:10.0", vf0+"iommu_group/devices/0000:01:10.0", "",
			vf0+"iommu_group/devices/0000:01:10.2", ""), No,
			"shares its IOMMU group with 0000:01:10.2"},
		{"a disk without ACS", groups, with(card0, disk+"sriov_totalvfs", "8",
			disk+"class", "0x010802", disk+"iommu_group/devices/0000:00:01.0", ""),
			OK, "will be alone"},
		{"nothing to group", groups, nil, No, "no VF"},
		{"vsock", vsock, map[string]string{"dev/vhost-vsock": ""}, OK, ""},
		{"no vsock", vsock, nil, No, "no /dev/vhost-vsock"},
		{"cgroup", cgroup, map[string]string{"proc/self/mountinfo": mountinfo, "sys/fs/cgroup/a/cgroup.kill": "", "sys/fs/cgroup/cgroup.controllers": "cpu io memory pids"}, OK, "v2 on /sys/fs/cgroup"},
		{"no memory controller", cgroup, map[string]string{"proc/self/mountinfo": mountinfo, "sys/fs/cgroup/a/cgroup.kill": ""}, Note, "without the controllers memory, pids"},
		{"no weights", cgroup, map[string]string{"proc/self/mountinfo": mountinfo, "sys/fs/cgroup/a/cgroup.kill": "",
			"sys/fs/cgroup/cgroup.controllers": "memory pids"}, OK, "v2 on /sys/fs/cgroup"},
		{"old kernel", cgroup, map[string]string{"proc/self/mountinfo": mountinfo, "sys/fs/cgroup/a/tasks": ""}, No, "no cgroup.kill"},
		{"v1", cgroup, map[string]string{"proc/self/mountinfo": "29 1 0:26 / /sys/fs/cgroup rw - cgroup cgroup rw"}, No, "no cgroup v2"},
		{"unlimited", memlock, map[string]string{"proc/self/limits": "Max locked memory         unlimited            unlimited            bytes"}, OK, "unlimited"},
		{"raised", memlock, map[string]string{"proc/self/limits": "Max locked memory  8192 8192 bytes", "proc/self/status": "CapEff:\t000001ffffffffff"}, OK, "raised"},
		{"limited", memlock, map[string]string{"proc/self/limits": "Max locked memory  8192 8192 bytes", "proc/self/status": "CapEff:\t00000000a80425fb"}, No, "limited"},
		{"huge", hugePages, map[string]string{"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "8", "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "3"}, OK, "3 of 8"},
		{"none reserved", hugePages, map[string]string{"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0"}, Note, "none of 2 MiB reserved"},
		{"no huge pages", hugePages, nil, Note, "none of 2 MiB"},
		{"huge shared pages", sharedPages, map[string]string{shmem: "always within_size [advise] never deny force"}, OK, "advise"},
		{"small shared pages", sharedPages, map[string]string{shmem: "always within_size advise [never] deny force"}, Note, "4 KiB"},
		{"few VFs", manyVFs, card0, OK, "no card has more"},
		{"too many VFs", manyVFs, with(card0, pf+"sriov_totalvfs", "1024"), Note, "1024 VFs"},
		{"storms seen", storms, map[string]string{"dev/kmsg": ""}, OK, "/dev/kmsg"},
		{"storms unseen", storms, nil, Note, "not ended"},
		{"no yama", tracing, nil, Note, "may trace"},
		{"yama off", tracing, map[string]string{"proc/sys/kernel/yama/ptrace_scope": "0"}, Note, "may trace"},
		{"yama", tracing, map[string]string{"proc/sys/kernel/yama/ptrace_scope": "1"}, OK, "scope 1"},
		{"vsock of namespaces", vsock, map[string]string{"dev/vhost-vsock": "", "proc/sys/net/vsock/ns_mode": "local"}, OK, "local"},
		{"stock", arms, nil, Note, "none"},
		{"ours", arms, map[string]string{"dev/fastiovd": ""}, OK, "fastiovd"},
		{"ours without its module", arms, map[string]string{toAny: "N"}, Note, "not loaded"},
		{"ours with safe switches", arms, ours("Y", "N", "N"), OK, "fastiovd"},
		{"ours that holds nothing", arms, ours("N", "N", "N"), Note, "hold_master is N"},
		{"ours for every device", arms, ours("Y", "Y", "N"), Note, "defer_to_any is Y"},
		{"ours for a table", arms, ours("Y", "N", "Y"), Note, "allow_table is Y"},
		{"ours on AMD", arms, with(behind("ivhd0", "amd-iommu/features", "1cf22294a5a"), "dev/fastiovd", ""), OK, "fastiovd"},
		{"ours with snoop control", arms, with(behind("dmar0", "intel-iommu/ecap", "f000da"), "dev/fastiovd", ""), OK, "fastiovd"},
		{"ours without", arms, with(behind("dmar0", "intel-iommu/ecap", "f0005a"), "dev/fastiovd", ""), Note, "dmar0 lacks snoop control"},
		{"stock without", arms, behind("dmar0", "intel-iommu/ecap", "f0005a"), Note, "none"},
		{"a disk without", arms, with(behind("dmar0", "intel-iommu/ecap", "f0005a"), "dev/fastiovd", "", pf+"class", "0x010802"), OK, "fastiovd"},
	} {
		f := c.check(machine(t, c.files))
		if f.Verdict != c.want || !strings.Contains(f.Found, c.found) {
			t.Errorf("%s: %s %q, want %s with %q", c.name, f.Verdict, f.Found, c.want, c.found)
		}
		if f.Verdict == Note && f.Remedy == "" &&
			!slices.Contains([]string{"no huge pages", "stock", "stock without"}, c.name) {
			t.Errorf("%s: notes and says not what to do", c.name)
		}
		if f.Verdict == No && f.Remedy == "" && c.name != "nothing to group" {
			t.Errorf("%s: says no and not what to do", c.name)
		}
	}
}

// Without a card nothing that VFs need keeps a machine from being a node.
func TestAMachineWithoutACardHasTaps(t *testing.T) {
	for what, c := range map[string]struct {
		files map[string]string
		node  bool
	}{
		"a laptop":                 {map[string]string{"dev/net/tun": ""}, true},
		"without tun devices":      {nil, false},
		"with a card and no IOMMU": {with(card0, "dev/net/tun", ""), false},
	} {
		if r := (Report{network(machine(t, c.files))}); r.Node() != c.node {
			t.Errorf("%s: a node %v, %v", what, r.Node(), r.Err())
		}
	}
}

func TestAnUnknownVMMIsNoted(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	vmmAt := func(path string) Finding {
		return vmm(hypervisor.QEMU{Root: "/", Program: path}, nil)
	}
	if f := vmmAt(self); f.Verdict != Note || !strings.Contains(f.Remedy, "QEMU-") {
		t.Errorf("this program as a VMM: %s %q; %s", f.Verdict, f.Found, f.Remedy)
	}
	if f := vmmAt("/etc/passwd"); f.Verdict != No {
		t.Errorf("what is no program: %s %q", f.Verdict, f.Found)
	}
	lack := &hypervisor.Missing{Why: errors.New("none is there")}
	if f := vmm(hypervisor.QEMU{}, lack); f.Verdict != No || f.Found != "none is there" ||
		f.Remedy != hypervisor.Remedy {
		t.Errorf("no QEMU: %s %q; %s", f.Verdict, f.Found, f.Remedy)
	}
}

func TestRoomOfAFileSystem(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	if f := roomIn("x", dir, "make room", 1); f.Verdict != OK {
		t.Errorf("%+v", f)
	}
	if f := roomIn("x", dir, "make room", 1<<60); f.Verdict != Note || f.Remedy != "make room" {
		t.Errorf("%+v", f)
	}
}

func TestUser(t *testing.T) {
	if user(0).Verdict != OK || user(1000).Verdict != No {
		t.Error("a node is run by root and by nobody else")
	}
}

func TestReport(t *testing.T) {
	good := Report{[]Finding{ok("a", "fine"), note("b", "improve it", "so so")}}
	if !good.Node() || good.Err() != nil {
		t.Error("a note is no obstacle")
	}
	bad := Report{append(good.Findings, no("c", "mend it", "broken"), no("d", "get it", "missing"))}
	if bad.Node() || bad.Err() == nil ||
		!strings.HasSuffix(bad.Err().Error(), ": broken; missing") {
		t.Error(bad.Err())
	}
	var out bytes.Buffer
	bad.Print(&out)
	if want := "no    c              broken; mend it\n"; !strings.Contains(out.String(), want) ||
		strings.Count(out.String(), "\n") != 4 {
		t.Errorf("%s", out.String())
	}
}

func TestKVMWithoutADevice(t *testing.T) {
	if f := kvm(t.Context(), machine(t, nil), nil, hypervisor.QEMU{}); f.Verdict != No ||
		!strings.Contains(f.Found, "no /dev/kvm") {
		t.Errorf("%+v", f)
	}
}
