package netpath

import (
	"errors"
	"os"
	"testing"

	"github.com/fastiov/fastiov/node-agent/netpath/netpathtest"
	"github.com/fastiov/fastiov/node-agent/startup"
)

func open(t *testing.T, dir string) *Path {
	t.Helper()
	p, err := Open(dir, 2)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func lease(t *testing.T, p *Path, id string) startup.Lease {
	t.Helper()
	l, err := p.Lease(id)
	if err != nil || l.ID != id || l.NIC.Kind != Kind || l.NIC.PCI != nil {
		t.Fatalf("leased %+v, %v", l, err)
	}
	return l
}

// lacks checks that a start would wait for an address.
func lacks(t *testing.T, p *Path) {
	t.Helper()
	l, err := p.Lease("late")
	var lacking *startup.Lacking
	if !errors.As(err, &lacking) || lacking.Lack != startup.LackNIC {
		t.Errorf("leased %+v, %v", l, err)
	}
}

func TestConformance(t *testing.T) {
	dir := t.TempDir()
	netpathtest.Subject{
		Open: func() (startup.NetPath, func(), error) {
			p, err := Open(dir, 2)
			return p, func() {}, err
		},
		Kind: Kind, NICs: 2,
	}.Run(t)
}

// An address with a fault is not leased again, and one whose lease cannot be read is left to nobody
// until it is returned.
func TestWhatCannotBeLeased(t *testing.T) {
	p := open(t, t.TempDir())
	a := lease(t, p, "a")
	p.Fault(a, "somebody else listens there")
	p.Return(a)
	if err := os.WriteFile(p.file(1), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	lacks(t, p)
	left := p.Left()
	if len(left) != 1 || left[0].ID != "" || left[0].Number != 1 {
		t.Fatalf("left is %+v", left)
	}
	p.Return(left[0])
	if l := lease(t, p, "b"); l.Number != 1 {
		t.Errorf("leased %+v", l)
	}
	if err := os.RemoveAll(p.Dir); err != nil {
		t.Fatal(err)
	}
	p = &Path{Dir: p.Dir, Size: 1}
	if l, err := p.Lease("c"); err == nil {
		t.Errorf("leased %+v, and nobody could find it", l)
	}
}
