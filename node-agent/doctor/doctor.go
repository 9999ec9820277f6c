// Package doctor decides whether this machine can be a node, and explains why not.
//
// A check looks at one thing and returns a finding: what is there, whether that is enough, and if
// not, what to do. Checks of files take the directory that stands for "/", so that tests can show
// them other machines. What files cannot prove is tried: a probe guest shows that KVM works.
package doctor

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/netpath/scon"
)

// A Verdict grades a finding.
type Verdict string

const (
	OK   Verdict = "ok"
	Note Verdict = "note" // a node works without it
	No   Verdict = "no"   // a node does not work without it
)

// A Finding is the outcome of one check.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	Remedy  string  `json:"remedy,omitempty"`
}

// A Report is the outcome of all checks.
type Report struct {
	Findings []Finding `json:"findings"`
}

// Node reports whether the machine can be a node.
func (r Report) Node() bool { return r.against() == nil }

// Err returns nil for a machine that can be a node, else one line that says why it cannot.
func (r Report) Err() error {
	if against := r.against(); against != nil {
		return fmt.Errorf("this machine cannot be a node: %s", strings.Join(against, "; "))
	}
	return nil
}

func (r Report) against() []string {
	var why []string
	for _, f := range r.Findings {
		if f.Verdict == No {
			why = append(why, f.Found)
		}
	}
	return why
}

// Print writes one line per finding.
func (r Report) Print(w io.Writer) {
	for _, f := range r.Findings {
		line := fmt.Sprintf("%-5s %-14s %s", f.Verdict, f.Check, f.Found)
		if f.Remedy != "" {
			line += "; " + f.Remedy
		}
		fmt.Fprintln(w, line)
	}
}

// A Kernel finds or makes the probe guest's kernel, which is an ordinary one.
type Kernel func(context.Context) (path string, err error)

// Check examines this machine. The probe of KVM comes last, since it takes seconds. Where the QEMU
// of this machine is not used, Check asks for the prefix.
func Check(ctx context.Context, kernel Kernel, prefix hypervisor.Prefix) Report {
	const root = "/"
	qemu, err := hypervisor.Find(ctx, prefix)
	findings := []Finding{
		user(os.Geteuid()),
		vmm(qemu, err),
		vsock(root),
		cgroup(root),
		hugePages(root),
		sharedPages(root),
		manyVFs(root),
		storms(root),
		tracing(root),
		runRoom(),
		cache(),
		arms(root),
		express(scon.Records()),
	}
	findings = append(findings, network(root)...)
	return Report{append(findings, kvm(ctx, root, kernel, qemu))}
}

// network checks what the NICs of microVMs need: VFs all that hands a device through, and taps, on
// a machine without a card that has VFs, one device.
func network(root string) []Finding {
	if !hasCard(root) {
		return []Finding{cards(root), tap(root)}
	}
	return []Finding{
		cards(root), iommu(root), interrupts(root), vfio(root), groups(root), memlock(root),
	}
}

func ok(check, found string, a ...any) Finding {
	return Finding{Check: check, Verdict: OK, Found: fmt.Sprintf(found, a...)}
}

func no(check, remedy, found string, a ...any) Finding {
	return Finding{Check: check, Verdict: No, Found: fmt.Sprintf(found, a...), Remedy: remedy}
}

func note(check, remedy, found string, a ...any) Finding {
	return Finding{Check: check, Verdict: Note, Found: fmt.Sprintf(found, a...), Remedy: remedy}
}
