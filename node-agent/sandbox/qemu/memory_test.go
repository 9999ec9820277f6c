package qemu

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
)

func TestMemoryThatIsZeroedAhead(t *testing.T) {
	const mib = 128
	way, err := arm.Parse("pre50")
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{config: Config{Arm: way}}
	if err := d.ZeroAhead(2, mib); err != nil {
		t.Fatal(err)
	}
	defer d.ahead.close()
	if _, err := d.ahead.take(2 * mib); err == nil {
		t.Error("there is memory of a size that nobody made")
	}
	m, err := d.ahead.take(mib)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	weigh := func(resident, zeroed uint64) {
		t.Helper()
		f, err := m.weigh(timeline.FirstAnswer)
		if err != nil || f.Resident != resident<<20 || f.Zeroed != zeroed<<20 {
			t.Errorf("%+v, %v; want %d MiB, and %d of them zeroed since the start", f, err,
				resident, zeroed)
		}
	}
	weigh(mib/2, 0)
	if err := unix.Fallocate(int(m.memfd.Fd()), 0, 0, mib<<20); err != nil {
		t.Fatal(err)
	}
	weigh(mib, mib/2)
	second, err := d.ahead.take(mib)
	if err != nil {
		t.Fatal(err)
	}
	defer second.close()
	if _, err := d.ahead.take(mib); err == nil {
		t.Error("two were made, and there is a third")
	}
}
