package scon

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

const rulesModule = "/sys/module/nf_tables"

// A generationAt says where programs find the generation of the rules. Where that is in struct net,
// it is zero; else nf_tables has it in memory of its own.
type generationAt struct {
	number uint64 // the address of nf_tables' number, by which a network namespace has its part
	offset uint32 // in that part
	module uint64 // the inode of the module, which differs when it is loaded anew
}

// findGeneration tells what the kernel lacks, where it cannot have an express path.
func findGeneration() (at generationAt, err error) {
	const loopback = 1 // of each network namespace
	if _, err := link.QueryPrograms(link.QueryOptions{Target: loopback,
		Attach: ebpf.AttachTCXIngress}); err != nil {
		return at, fmt.Errorf("the kernel has no BPF programs of devices (tcx, Linux 6.6): %w",
			err)
	}
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return at, fmt.Errorf("the kernel does not describe its types (CONFIG_DEBUG_INFO_BTF): %w",
			err)
	}
	if _, err := offsetOf(kernel, "nf_conn", "tuplehash"); err != nil {
		return at, fmt.Errorf("the kernel does not tell programs its connections: %w", err)
	}
	if err := layout(kernel); err != nil {
		return at, err
	}
	if _, err := offsetOf(kernel, "netns_nftables", "base_seq"); err == nil {
		return at, nil
	}
	if _, err := readRuleset(); err != nil { // has the kernel load the module
		return at, fmt.Errorf("rules: %w", err)
	}
	if at.offset, err = offsetOf(kernel, "nftables_pernet", "base_seq"); err != nil {
		module, fault := btf.LoadKernelModuleSpec("nf_tables")
		if fault == nil {
			at.offset, fault = offsetOf(module, "nftables_pernet", "base_seq")
		}
		if fault != nil {
			return at, fmt.Errorf("the kernel does not tell programs when its rules changed:"+
				" %w, %w", err, fault)
		}
	}
	if at.number, err = addressOf("nf_tables_net_id"); err != nil {
		return at, fmt.Errorf("the kernel does not tell programs when its rules changed: %w", err)
	}
	at.module, err = inode(rulesModule)
	return at, err
}

// tell sets the variables of the programs.
func (at generationAt) tell(spec *ebpf.CollectionSpec) error {
	return errors.Join(spec.Variables[programVarSecond].Set(jiffies(time.Second)),
		spec.Variables[programVarNfTablesId].Set(at.number),
		spec.Variables[programVarBaseSeqAt].Set(at.offset))
}

// tick returns how long a jiffy is, the programs' unit of time.
func tick() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &t); err != nil {
		panic(err) // there is no Linux without
	}
	return time.Duration(t.Nano())
}

func jiffies(d time.Duration) uint64 { return uint64(d / tick()) }

// moved reports whether the module was loaded anew, so its memory is elsewhere.
func (at generationAt) moved() bool {
	if at.module == 0 {
		return false
	}
	now, err := inode(rulesModule)
	return err != nil || now != at.module
}

func offsetOf(types *btf.Spec, name, field string) (uint32, error) {
	var t *btf.Struct
	if err := types.TypeByName(name, &t); err != nil {
		return 0, err
	}
	for _, member := range t.Members {
		if member.Name == field {
			return member.Offset.Bytes(), nil
		}
	}
	return 0, fmt.Errorf("its %s has no %s", name, field)
}

// layout checks that a connection is laid out as the programs read it, by words: its zone behind
// the time when it ends; of a tuple its port, family and other address, and then its other port and
// protocol; its status behind the second tuple; and of TCP the flags of the reply's side, the state
// and the kind of the last packet.
func layout(types *btf.Spec) error {
	var of struct{ connection, tuple *btf.Struct }
	if err := errors.Join(types.TypeByName("nf_conn", &of.connection),
		types.TypeByName("nf_conntrack_tuple", &of.tuple)); err != nil {
		return err
	}
	var offsets []uint32
	var each func(at uint32, t btf.Type)
	each = func(at uint32, t btf.Type) {
		s, is := btf.UnderlyingType(t).(*btf.Struct)
		if !is {
			offsets = append(offsets, at)
			return
		}
		for _, member := range s.Members {
			each(at+member.Offset.Bytes(), member.Type)
		}
	}
	each(0, of.tuple)
	if !slices.Equal(offsets, []uint32{0, 16, 18, 20, 36, 38, 39}) {
		return fmt.Errorf("the kernel has tuples of connections with another layout: %d", offsets)
	}
	offsets = nil
	for _, field := range []string{"timeout", "zone", "tuplehash", "status", "ct_net"} {
		at, err := offsetOf(types, "nf_conn", field)
		if err != nil {
			return err
		}
		offsets = append(offsets, at)
	}
	const tuples = 2 * (16 + 40) // each behind the pointers of a list
	if zone := offsets[0] + 4; offsets[1] != zone || zone%8 != 4 || offsets[2]%8 != 0 ||
		offsets[3] != offsets[2]+tuples {
		return fmt.Errorf("the kernel has connections with another layout: %d", offsets)
	}
	return layoutOfTCP(types)
}

func layoutOfTCP(types *btf.Spec) error {
	var side *btf.Struct
	if err := types.TypeByName("ip_ct_tcp_state", &side); err != nil {
		return err
	}
	offsets := []uint32{side.Size}
	for _, field := range [][2]string{{"ip_ct_tcp_state", "flags"}, {"ip_ct_tcp", "seen"},
		{"ip_ct_tcp", "state"}, {"ip_ct_tcp", "last_index"}} {
		at, err := offsetOf(types, field[0], field[1])
		if err != nil {
			return err
		}
		offsets = append(offsets, at)
	}
	flags := offsets[2] + offsets[0] + offsets[1] // of the second side
	if offsets[3] != flags+3 || offsets[4] != flags+6 {
		return fmt.Errorf("the kernel has TCP connections with another layout: %d", offsets)
	}
	return nil
}

// addressOf returns where the kernel has a symbol.
func addressOf(symbol string) (uint64, error) {
	all, err := os.Open("/proc/kallsyms")
	if err != nil {
		return 0, err
	}
	defer all.Close()
	for lines := bufio.NewScanner(all); lines.Scan(); {
		if of := strings.Fields(lines.Text()); len(of) > 2 && of[2] == symbol {
			address, err := strconv.ParseUint(of[0], 16, 64)
			if err == nil && address == 0 {
				return 0, errors.New("it hides addresses; set kernel.kptr_restrict to 1")
			}
			return address, err
		}
	}
	return 0, fmt.Errorf("it names no %s (CONFIG_KALLSYMS_ALL)", symbol)
}

func inode(path string) (uint64, error) {
	about, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // it is built in
	}
	if err != nil {
		return 0, err
	}
	return about.Sys().(*syscall.Stat_t).Ino, nil
}
