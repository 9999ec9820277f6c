package kprobe

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// license is the licence that the kernel demands of programs that use its tracing helpers.
const license = "Dual MIT/GPL"

// A detail says which fact an event holds besides its times.
type detail int

const (
	none   detail = iota
	size          // the size of the mapping that the third argument, a user's struct, describes
	device        // the PCI function that the first argument is
)

// A target is a kernel function and the meaning of its calls.
type target struct {
	function string
	command  int32 // the second argument, an ioctl command; 0: any call counts
	kind     Kind
	detail   detail
	offset   int32 // offset of the size in the user's struct
}

var targets = []target{
	// VFIO_GROUP_GET_DEVICE_FD
	{function: "vfio_group_fops_unl_ioctl", command: 0x3b6a, kind: Opening},
	// VFIO_DEVICE_BIND_IOMMUFD
	{function: "vfio_device_fops_unl_ioctl", command: 0x3b76, kind: Opening},
	// VFIO_IOMMU_MAP_DMA
	{function: "vfio_iommu_type1_ioctl", command: 0x3b71, kind: Mapping, detail: size, offset: 24},
	// IOMMU_IOAS_MAP
	{function: "iommufd_fops_ioctl", command: 0x3b85, kind: Mapping, detail: size, offset: 24},
	{function: "__pci_reset_function_locked", kind: Resetting, detail: device},
}

type program = asm.Instructions

// The places of the function's first three arguments in a program's context.
var (
	fentryArguments = [3]int16{0, 8, 16}
	kprobeArguments = [3]int16{112, 104, 96} // rdi, rsi, rdx in struct pt_regs of x86-64
)

// The stack of both programs, as offsets from the frame pointer.
const (
	keyThread = -16 // key: pid_tgid, kind
	keyKind   = -8
	begin     = -32 // value: begin, detail
	about     = -24
	scratch   = -40
)

// entry returns a program that stores when a call begins.
func entry(t target, arguments [3]int16, begun *ebpf.Map) program {
	code := program{asm.Mov.Reg(asm.R6, asm.R1)}
	if t.command != 0 {
		code = append(code,
			asm.LoadMem(asm.R2, asm.R6, arguments[1], asm.DWord),
			asm.Mov.Reg32(asm.R2, asm.R2),
			asm.JNE.Imm(asm.R2, t.command, "out"),
		)
	}
	code = append(code, put(about, 0)...)
	switch t.detail {
	case size:
		code = append(code,
			asm.LoadMem(asm.R3, asm.R6, arguments[2], asm.DWord),
			asm.Add.Imm(asm.R3, t.offset),
		)
		code = append(code, read(asm.FnProbeReadUser, about, 8)...)
	case device:
		code = append(code, readDevice(arguments)...)
	}
	code = append(code, key(t)...)
	return append(code,
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, begin, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, begun.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyThread),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, begin),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	)
}

// exit returns a program that reports the ending call, if its beginning was stored.
func exit(t target, begun, events *ebpf.Map) program {
	code := append(key(t),
		asm.FnKtimeGetNs.Call(),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.LoadMapPtr(asm.R1, begun.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyThread),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.LoadMapPtr(asm.R1, events.FD()),
		asm.Mov.Imm(asm.R2, 32), asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "delete"),
		asm.LoadMem(asm.R1, asm.R7, 0, asm.DWord), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.StoreMem(asm.R0, 8, asm.R8, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, keyThread, asm.DWord), asm.RSh.Imm(asm.R1, 32),
		asm.StoreMem(asm.R0, 16, asm.R1, asm.Word),
		asm.StoreImm(asm.R0, 20, int64(t.kind), asm.Word),
		asm.LoadMem(asm.R1, asm.R7, 8, asm.DWord), asm.StoreMem(asm.R0, 24, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R0), asm.Mov.Imm(asm.R2, 0),
		asm.FnRingbufSubmit.Call(),
		asm.LoadMapPtr(asm.R1, begun.FD()).WithSymbol("delete"),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyThread),
		asm.FnMapDeleteElem.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	)
	return code
}

// masterEvent returns a program that reports that a VF has become a bus master. It reads the event
// vfio_pci:vfio_pci_master, which holds how long the VF waited and, behind that, the VF's name. The
// report is its 32 bytes and the name.
func masterEvent(events *ebpf.Map) program {
	const waited, name, length = 16, 24, 16
	return program{
		asm.Mov.Reg(asm.R6, asm.R1),
		// convert from µs
		asm.LoadMem(asm.R7, asm.R6, waited, asm.DWord), asm.Mul.Imm(asm.R7, 1000),
		asm.FnKtimeGetNs.Call(),
		asm.Mov.Reg(asm.R9, asm.R0),
		asm.LoadMapPtr(asm.R1, events.FD()),
		asm.Mov.Imm(asm.R2, 32+length), asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.StoreMem(asm.R8, 8, asm.R9, asm.DWord),
		asm.Sub.Reg(asm.R9, asm.R7), asm.StoreMem(asm.R8, 0, asm.R9, asm.DWord),
		asm.StoreImm(asm.R8, 16, 0, asm.Word), asm.StoreImm(asm.R8, 20, int64(mastering), asm.Word),
		asm.StoreImm(asm.R8, 24, 0, asm.Word), asm.StoreImm(asm.R8, 28, 0, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R8), asm.Add.Imm(asm.R1, 32),
		asm.Mov.Imm(asm.R2, length),
		asm.Mov.Reg(asm.R3, asm.R6), asm.Add.Imm(asm.R3, name),
		asm.FnProbeReadKernelStr.Call(),
		asm.Mov.Reg(asm.R1, asm.R8), asm.Mov.Imm(asm.R2, 0),
		asm.FnRingbufSubmit.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	}
}

// key returns code that puts (thread, kind) on the stack.
func key(t target) program {
	return append(program{
		asm.FnGetCurrentPidTgid.Call(),
		asm.StoreMem(asm.RFP, keyThread, asm.R0, asm.DWord),
	}, put(keyKind, int32(t.kind))...)
}

// put returns code that stores a constant in eight bytes of the stack.
func put(at int16, value int32) program {
	return program{asm.Mov.Imm(asm.R1, value), asm.StoreMem(asm.RFP, at, asm.R1, asm.DWord)}
}

// read returns code that copies n bytes from the address in R3 to the stack.
func read(helper asm.BuiltinFunc, to int16, n int32) program {
	return program{
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, int32(to)),
		asm.Mov.Imm(asm.R2, n),
		helper.Call(),
	}
}

// readDevice returns code that puts a PCI function's bus number and devfn on the stack:
// dev->bus->number, dev->devfn. If the kernel has no BTF that describes these fields, the function
// stays unknown.
func readDevice(arguments [3]int16) program {
	bus, number, devfn, err := deviceFields()
	if err != nil {
		return nil
	}
	code := program{asm.LoadMem(asm.R7, asm.R6, arguments[0], asm.DWord)}
	code = append(code, asm.Mov.Reg(asm.R3, asm.R7), asm.Add.Imm(asm.R3, devfn))
	code = append(code, read(asm.FnProbeReadKernel, about, 1)...)
	code = append(code, asm.Mov.Reg(asm.R3, asm.R7), asm.Add.Imm(asm.R3, bus))
	code = append(code, read(asm.FnProbeReadKernel, scratch, 8)...)
	code = append(code, asm.LoadMem(asm.R3, asm.RFP, scratch, asm.DWord),
		asm.Add.Imm(asm.R3, number))
	code = append(code, read(asm.FnProbeReadKernel, about+1, 1)...)
	return append(code, asm.StoreImm(asm.RFP, about+2, 1, asm.Byte)) // marks the function as known
}

func deviceFields() (bus, number, devfn int32, err error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return 0, 0, 0, err
	}
	offset := func(of, field string) (at int32) {
		var s *btf.Struct
		if err == nil {
			err = spec.TypeByName(of, &s)
		}
		if err != nil {
			return 0
		}
		for _, m := range s.Members {
			if m.Name == field {
				return int32(m.Offset.Bytes())
			}
		}
		err = fmt.Errorf("struct %s has no field %s", of, field)
		return 0
	}
	return offset("pci_dev", "bus"), offset("pci_bus", "number"), offset("pci_dev", "devfn"), err
}

// bdf returns the address of the function in a detail that readDevice wrote.
func bdf(d uint64) string {
	if d>>16&1 == 0 {
		return "unknown"
	}
	return fmt.Sprintf("0000:%02x:%02x.%d", d>>8&0xff, d>>3&0x1f, d&7)
}
