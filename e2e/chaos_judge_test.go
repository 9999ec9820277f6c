//go:build failpoint

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/procfs"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// A judge compares the journal and the agents' answers with the kernel's state: which process has
// which VF open, and which driver is bound to what.
type judge struct {
	t              *testing.T
	pf             string            // its directory in sysfs
	generations    map[string]uint64 // by VF: they never go back
	found          string            // the state that an undo has to restore
	adopted, ended int               // leases that a new agent found
}

const igbVFs = 7

func newJudge(t *testing.T) judge {
	t.Helper()
	// this driver takes VFs that exist before fastiov comes
	if out, err := exec.Command("modprobe", "igbvf").CombinedOutput(); err != nil {
		t.Fatalf("igbvf: %v: %s", err, out)
	}
	pfs, _ := filepath.Glob("/sys/bus/pci/drivers/igb/*/sriov_totalvfs")
	if len(pfs) != 1 {
		t.Fatalf("want one igb PF, found %v", pfs)
	}
	j := judge{t: t, pf: filepath.Dir(pfs[0]), generations: map[string]uint64{}}
	j.found = j.picture()
	return j
}

// A lease is an entry of the journal in state leased.
type lease struct {
	State      vf.State
	Generation uint64
	Owner      *vf.Owner
	lived      bool // when it was read
}

func (l lease) alive() bool {
	ticks, err := procfs.StartTicks(l.Owner.PID)
	return err == nil && ticks == l.Owner.StartTicks
}

// leases reads the journal while no agent runs. It checks that every entry can be read, and that no
// generation has gone back.
func (j *judge) leases() map[string]lease {
	j.t.Helper()
	files, _ := filepath.Glob(filepath.Join(chaosRun, "vf/*.json"))
	leased := map[string]lease{}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			j.t.Fatal(err)
		}
		var l lease
		if err := json.Unmarshal(data, &l); err != nil {
			j.t.Fatalf("%s holds %q: %v", path, data, err)
		}
		bdf := strings.TrimSuffix(filepath.Base(path), ".json")
		if l.Generation < j.generations[bdf] {
			j.t.Errorf("the generation of %s went from %d back to %d", bdf,
				j.generations[bdf], l.Generation)
		}
		j.generations[bdf] = l.Generation
		if l.State == vf.Leased {
			l.lived = l.alive()
			leased[bdf] = l
		}
	}
	return leased
}

// atRest checks, while no agent runs, that each open VF is open in the process to which the journal
// leases it. Processes that the agent killed just before its own end may take a moment.
func (j *judge) atRest() {
	j.t.Helper()
	var wrong []string
	for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(
		10 * time.Millisecond) {
		wrong = nil
		leased := j.leases()
		for bdf, pid := range j.holders() {
			if l, found := leased[bdf]; !found || l.Owner.PID != pid {
				wrong = append(wrong, fmt.Sprintf("%s is open in process %d; its lease is %+v", bdf,
					pid, l))
			}
		}
		if wrong == nil {
			return
		}
	}
	j.t.Errorf("the journal and the kernel disagree: %v", wrong)
}

// holders returns the processes that have a VF's group open. The kernel allows one at a time.
func (j *judge) holders() map[string]int {
	bdfs := map[string]string{}
	for bdf := range j.vfs() {
		if group, err := os.Readlink(filepath.Join("/sys/bus/pci/devices",
			bdf, "iommu_group")); err == nil {
			bdfs["/dev/vfio/"+filepath.Base(group)] = bdf
		}
	}
	holders := map[string]int{}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		target, _ := os.Readlink(link)
		if bdf, found := bdfs[target]; found {
			holders[bdf], _ = strconv.Atoi(strings.Split(link, "/")[2])
		}
	}
	return holders
}

// afterStart checks that a new agent adopted every lease that it found, or ended the lease's owner;
// and that it ended no ready sandbox that still lived. From then on, the ready sandboxes are those
// of the agent.
func (j *judge) afterStart(node api.NodeClient, before map[string]lease, ready map[string]bool) {
	j.t.Helper()
	st := j.status(node)
	if st == nil {
		return // it was killed again already
	}
	has := map[string]*api.Sandbox{}
	vfs := map[string]string{}
	for _, s := range st.Sandboxes {
		if other := vfs[s.Vf]; other != "" {
			j.t.Errorf("%s and %s both have VF %s", other, s.Id, s.Vf)
		}
		has[s.Id], vfs[s.Vf] = s, s.Id
	}
	lived := map[string]bool{}
	for bdf, l := range before {
		lived[l.Owner.Name] = l.lived
		switch s := has[l.Owner.Name]; {
		case s == nil && l.alive():
			j.t.Errorf("the lease of %s to %+v was not adopted, and its owner lives", bdf, *l.Owner)
		case s == nil:
			j.ended++
		case s.Vf != bdf || int(s.Pid) != l.Owner.PID || !s.Adopted:
			j.t.Errorf("the lease of %s to %+v became %v", bdf, *l.Owner, s)
		default:
			j.adopted++
		}
	}
	for id := range ready {
		if lived[id] && has[id] == nil {
			j.t.Errorf("%s lived and was ended", id)
		}
	}
	clear(ready)
	for id := range has {
		ready[id] = true
	}
	for _, v := range st.Vfs {
		if v.State == string(vf.Quarantined) || v.State == string(vf.Gone) {
			j.t.Errorf("%s is lost: %s", v.Bdf, v.State)
		}
	}
}

func (j *judge) status(node api.NodeClient) *api.StatusReply {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	st, err := node.Status(ctx, &api.StatusRequest{})
	if err != nil {
		return nil
	}
	return st
}

// drained makes the agent end every sandbox, and waits until all VFs are idle and nothing is left.
func (j *judge) drained(node api.NodeClient) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := node.Drain(ctx, &api.DrainRequest{Cancel: true, Once: true}); err != nil {
		j.t.Fatalf("drain: %v", err)
	}
	var st *api.StatusReply
	for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(
		20 * time.Millisecond) {
		st = j.status(node)
		idle := 0
		for _, v := range st.GetVfs() {
			if v.State == string(vf.Idle) {
				idle++
			}
		}
		if idle == igbVFs && idle == len(st.Vfs) && len(st.Leftovers) == 0 &&
			len(j.holders()) == 0 {
			return
		}
	}
	j.t.Errorf("after the drain something is missing or left: %v, held: %v", st, j.holders())
}

// undone checks that the host is as it was found, and removes its VFs.
func (j *judge) undone() {
	j.t.Helper()
	if now := j.picture(); now != j.found {
		j.t.Errorf("the host was found so:\n%s\nand is left so:\n%s", j.found, now)
	}
	j.setVFs(0)
}

// createVFs gives the VFs to the kernel's own driver, as another user might have before fastiov
// came.
func (j *judge) createVFs() { j.setVFs(igbVFs) }

func (j *judge) setVFs(n int) {
	j.t.Helper()
	path := filepath.Join(j.pf, "sriov_numvfs")
	if now, _ := os.ReadFile(path); strings.TrimSpace(string(now)) != strconv.Itoa(n) {
		if err := os.WriteFile(path, []byte(strconv.Itoa(n)), 0); err != nil {
			j.t.Fatal(err)
		}
	}
	clear(j.generations)
	j.found = j.picture()
}

// vfs returns the PF's VFs and their directories in sysfs.
func (j *judge) vfs() map[string]string {
	links, _ := filepath.Glob(filepath.Join(j.pf, "virtfn*"))
	vfs := map[string]string{}
	for _, link := range links {
		if dir, err := filepath.EvalSymlinks(link); err == nil {
			vfs[filepath.Base(dir)] = dir
		}
	}
	return vfs
}

// picture describes everything that an undo has to restore.
func (j *judge) picture() string {
	var b strings.Builder
	for _, file := range []string{"sriov_numvfs", "sriov_drivers_autoprobe"} {
		value, _ := os.ReadFile(filepath.Join(j.pf, file))
		fmt.Fprintln(&b, file, strings.TrimSpace(string(value)))
	}
	vfs := j.vfs()
	for _, bdf := range slices.Sorted(maps.Keys(vfs)) {
		driver, _ := os.Readlink(filepath.Join(vfs[bdf], "driver"))
		override, _ := os.ReadFile(filepath.Join(vfs[bdf], "driver_override"))
		fmt.Fprintln(&b, bdf, filepath.Base(driver), strings.TrimSpace(string(override)))
	}
	return b.String()
}
