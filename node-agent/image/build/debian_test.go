package build

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// need skips the test where this machine lacks what it needs, and fails it in CI.
func need(t *testing.T, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("FASTIOV_CI") != "":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

func TestVersionsAreRead(t *testing.T) {
	d := versions()
	if d.Suite == "" || len(d.Pins) == 0 || !strings.HasPrefix(d.kernel, "6.12.") {
		t.Errorf("versions.yaml gives %+v", d)
	}
	if d := hostVersions(); d.Suite == "" || d.Pins["qemu"] == "" {
		t.Errorf("versions.yaml gives for hosts %+v", d)
	}
}

// TestAptTakesWhatIsPinned asks apt itself, of two suites: what is pinned is taken from either, and
// otherwise from whichever has the newer one.
func TestAptTakesWhatIsPinned(t *testing.T) {
	need(t, needTools())
	a := apt{dir: filepath.Join(t.TempDir(), "debian")}
	suites := []string{"security", "release"}
	offers := map[string][]string{ // name, its source, its version
		"security": {kernelSource + " linux-6.12 6.12.7", kernelSource + " linux-6.12 6.12.9",
			"vmm vmm 1", "vmm vmm 2"},
		"release": {kernelSource + " linux 6.12.5", kernelSource + " linux 6.12.8", "vmm vmm 3"},
	}
	seen, _ := a.seen()
	var sources string
	for _, suite := range suites {
		writeSuite(t, filepath.Join(a.dir, suite), suite, offers[suite])
		sources += fmt.Sprintf("deb [trusted=yes] file:%s/%s ./\n", seen, suite)
	}
	for _, c := range []struct{ kernel, vmm, wantKernel, wantVMM string }{
		{"", "", "6.12.9", "3"},
		{"6.12.7", "1", "6.12.7", "1"},
		{"6.12.5", "2", "6.12.5", "2"},
		{"6.12.6", "4", "6.12.9", "3"}, // gone from the mirror
	} {
		a.wanted.kernel, a.wanted.Pins = c.kernel, map[string]string{}
		if c.vmm != "" {
			a.wanted.Pins["vmm"] = c.vmm
		}
		if err := a.write(t.Context(), sources); err != nil {
			t.Fatal(err)
		}
		if _, err := a.run(t.Context(), "apt-get", "update", "--error-on=any"); err != nil {
			t.Fatal(err)
		}
		debs, err := a.resolve(t.Context(), []string{kernelSource, "vmm"})
		if err != nil || len(debs) != 2 || debs[0].version != c.wantKernel ||
			debs[1].version != c.wantVMM {
			t.Errorf("%+v: got %+v, %v", c, debs, err)
		}
	}
}

// TestTheIndexOfAnotherSuiteStays goes from one suite to another and back, reading each index once.
func TestTheIndexOfAnotherSuiteStays(t *testing.T) {
	need(t, needTools())
	a := apt{dir: filepath.Join(t.TempDir(), "debian")}
	seen, _ := a.seen()
	for _, step := range []struct {
		suite string
		read  bool
	}{{"old", true}, {"new", true}, {"old", false}, {"new", false}} {
		if step.read {
			offers := []string{"only-" + step.suite + " source 1"}
			writeSuite(t, filepath.Join(a.dir, step.suite), step.suite, offers)
		}
		sources := fmt.Sprintf("deb [trusted=yes] file:%s/%s ./\n", seen, step.suite)
		if err := a.write(t.Context(), sources); err != nil {
			t.Fatal(err)
		}
		if step.read {
			_, err := a.run(t.Context(), "apt-get", "update", "--error-on=any")
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := a.resolve(t.Context(), []string{"only-" + step.suite}); err != nil {
			t.Errorf("%+v: %v", step, err)
		}
	}
}

// writeSuite writes a suite of packages.
func writeSuite(t *testing.T, dir, suite string, offers []string) {
	t.Helper()
	var list strings.Builder
	for _, offer := range offers {
		of := strings.Fields(offer)
		fmt.Fprintf(&list, "Package: %[1]s\nSource: %[2]s\nVersion: %[3]s\n"+
			"Architecture: amd64\nMaintainer: a\nDescription: b\n"+
			"Filename: %[1]s_%[3]s.deb\nSize: 1\nSHA256: %064[4]d\n\n", of[0], of[1], of[2], 0)
	}
	sum := sha256.Sum256([]byte(list.String()))
	release := fmt.Sprintf("Origin: Debian\nCodename: %s\nDate: Mon, 01 Jan 2024 00:00:00 UTC\n"+
		"SHA256:\n %x %d Packages\n", suite, sum, list.Len())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"Packages": list.String(), "Release": release} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAptSimulationIsParsed(t *testing.T) {
	const out = `NOTE: This is only a simulation!
Inst gcc-12-base (12.2.0-14+deb12u1 Debian:12.12/oldstable [amd64]) []
Inst libc6 [2.36-8] (2.36-9+deb12u14 Debian-Security:12/oldstable-security, Debian:12.12 [amd64])
Inst qemu-system-x86 (1:10.0.2+ds-2~bpo12+1 Debian Backports:stable-backports [amd64])
Conf libc6 (2.36-9+deb12u14 Debian:12.12/oldstable [amd64])
`
	var got []string
	for _, m := range inst.FindAllStringSubmatch(out, -1) {
		got = append(got, strings.Join(m[1:], " "))
	}
	want := []string{"gcc-12-base 12.2.0-14+deb12u1 amd64", "libc6 2.36-9+deb12u14 amd64",
		"qemu-system-x86 1:10.0.2+ds-2~bpo12+1 amd64"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestAptComplaint(t *testing.T) {
	for in, want := range map[string]string{
		"W: slow\nE: Unable to locate package x\nE: other\n": "Unable to locate package x",
		"something\nlast words\n":                            "last words",
	} {
		if got := complaint([]byte(in)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWithout(t *testing.T) {
	debs := []deb{{name: "perl"}, {name: "perl-base"}, {name: "libperl5"}, {name: "python3"}}
	var got []string
	for _, d := range without(debs, "perl*", "python") {
		got = append(got, d.name)
	}
	if want := []string{"libperl5", "python3"}; !slices.Equal(got, want) || len(debs) != 4 ||
		debs[0].name != "perl" {
		t.Errorf("got %v of %v, want %v", got, debs, want)
	}
}

func TestTestbedKeepsWhatANodeNeeds(t *testing.T) {
	for name, want := range map[string]bool{
		"/lib/modules/6.12/kernel/drivers/vfio/pci/vfio-pci.ko.xz":                  true,
		"/lib/modules/6.12/kernel/drivers/net/ethernet/intel/igb/igb.ko.xz":         true,
		"/lib/modules/6.12/kernel/drivers/net/ethernet":                             true,
		"/lib/modules/6.12/kernel/net/vmw_vsock/vsock.ko.xz":                        true,
		"/lib/modules/6.12/kernel/drivers/gpu/drm/drm.ko.xz":                        false,
		"/lib/modules/6.12/kernel/drivers/net/wireless/intel/iwlwifi/iwlwifi.ko.xz": false,
		"/lib/modules/6.12/kernel/sound/soundcore.ko.xz":                            false,
		"/boot/vmlinuz-6.12": true,
	} {
		if got := keepTestbedModule(name); got != want {
			t.Errorf("%s: kept %v, want %v", name, got, want)
		}
	}
}

// elfFile makes a 64-bit ELF file with one note segment and one .modinfo section, both with the
// given content.
func elfFile(content string) []byte {
	le, names := binary.LittleEndian, "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	at := uint64(64 + 56)
	put := func(v ...any) {
		for _, x := range v {
			binary.Write(&b, le, x)
		}
	}
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	put(uint16(elf.ET_REL), uint16(elf.EM_X86_64), uint32(1), uint64(0), uint64(64),
		at+uint64(len(content)+len(names)), uint32(0),
		uint16(64), uint16(56), uint16(1), uint16(64), uint16(3), uint16(2))
	put(uint32(elf.PT_NOTE), uint32(4), at, uint64(0), uint64(0), uint64(len(content)),
		uint64(len(content)), uint64(4))
	b.WriteString(content + names)
	section := func(name, kind uint32, offset, size uint64) {
		put(name, kind, uint64(0), uint64(0), offset, size, uint32(0),
			uint32(0), uint64(1), uint64(0))
	}
	section(0, 0, 0, 0)
	section(1, uint32(elf.SHT_PROGBITS), at, uint64(len(content)))
	section(10, uint32(elf.SHT_STRTAB), at+uint64(len(content)), uint64(len(names)))
	return b.Bytes()
}

func TestModulesLoadAfterWhatTheyNeed(t *testing.T) {
	tree, err := rootfs.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	needs := map[string]string{"a": "b,c-d", "b": "c_d", "c-d": "", "other": "absent"}
	for name, depends := range needs {
		content := elfFile("license=GPL\x00depends=" + depends + "\x00name=x\x00")
		if err := tree.Write("/lib/modules/6.12/kernel/"+name+".ko", 0o644, content); err != nil {
			t.Fatal(err)
		}
	}
	m, err := modulesOf(tree)
	if err != nil {
		t.Fatal(err)
	}
	list, err := m.inLoadOrder("a", "b")
	var got []string
	for _, module := range list {
		got = append(got, module.name)
	}
	if want := []string{"c_d", "b", "a"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	_, err = m.inLoadOrder("other")
	if err == nil || !strings.Contains(err.Error(), "no module absent") {
		t.Errorf("got %v", err)
	}
}

func TestUnsigned(t *testing.T) {
	signed := func(size uint32) []byte {
		b := append([]byte("module"), "signature"...)
		b = append(b, make([]byte, 8)...)
		b = binary.BigEndian.AppendUint32(b, size)
		return append(b, "~Module signature appended~\n"...)
	}
	if got := unsigned(signed(9)); string(got) != "module" {
		t.Errorf("got %q", got)
	}
	for _, b := range [][]byte{nil, []byte("plain"), []byte("~Module signature appended~\n"),
		signed(1 << 31)} {
		if got := unsigned(b); !bytes.Equal(got, b) {
			t.Errorf("%q became %q", b, got)
		}
	}
}

// bzImage packs a kernel as Linux's build does.
func bzImage(kernel []byte) []byte {
	w, _ := zstd.NewWriter(nil)
	payload := binary.LittleEndian.AppendUint32(w.EncodeAll(kernel, nil), uint32(len(kernel)))
	b := make([]byte, 2*512+100)
	b[0x1f1] = 1
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(b[0x248:], 100)
	binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(payload)))
	return append(b, payload...)
}

func TestVmlinux(t *testing.T) {
	kernel := elfFile("\x04\x00\x00\x00\x04\x00\x00\x00\x12\x00\x00\x00Xen\x00\x30\x0a\x00\x01")
	got, err := vmlinux(bzImage(kernel))
	if err != nil || !bytes.Equal(got, kernel) {
		t.Errorf("%d bytes of %d, %v", len(got), len(kernel), err)
	}
	good := bzImage(kernel)
	for want, b := range map[string][]byte{
		"no bzImage":   make([]byte, 4096),
		"no PVH entry": bzImage(elfFile("nothing of note")),
		"bad magic":    bzImage([]byte(strings.Repeat("no ELF file at all. ", 4))),
		"outside":      good[:len(good)-8],
		"zstd":         append(good[:len(good)-40:len(good)-40], make([]byte, 40)...),
	} {
		if _, err := vmlinux(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// mirror returns where packages come from, and skips the test where they cannot be had.
func mirror(t *testing.T) archive {
	t.Helper()
	if testing.Short() {
		t.Skip("downloads packages")
	}
	need(t, needTools())
	if _, err := os.Stat(keyring); err != nil {
		need(t, errNoKeyring)
	}
	from, err := findArchive(t.Context())
	need(t, err)
	uri, err := url.Parse(from.main)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.DialTimeout("tcp", net.JoinHostPort(uri.Hostname(), cmp.Or(uri.Port(), "80")),
		5*time.Second)
	if err != nil && os.Getenv("http_proxy") == "" {
		t.Skipf("no package mirror: %v", err)
	}
	if c != nil {
		c.Close()
	}
	return from
}

// TestMirrorsAreReadWithoutRoot: apt's methods have apt's own user where root runs it, and a real
// download leaves the directory theirs.
func TestMirrorsAreReadWithoutRoot(t *testing.T) {
	if !apart() {
		t.Skip("needs root, apt's user and a mount namespace")
	}
	a := apt{dir: filepath.Join(t.TempDir(), "debian"), wanted: versions()}
	config, err := a.config(t.Context())
	if err != nil || !strings.Contains(config, `APT::Sandbox::User "_apt";`) {
		t.Errorf("%v, %s", err, config)
	}
	a.archive = mirror(t)
	if err := a.prepare(t.Context(), func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	methods, err := user.Lookup(methodsUser)
	if err != nil {
		t.Fatal(err)
	}
	var partial unix.Stat_t
	if err := unix.Stat(filepath.Join(a.dir, "lists/partial"), &partial); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(partial.Uid) != methods.Uid {
		t.Errorf("downloads are user %d's, want %s's", partial.Uid, methods.Uid)
	}
	if lists, _ := os.ReadDir(filepath.Join(a.dir, "lists")); len(lists) < 3 {
		t.Errorf("the index has %v", lists)
	}
}

// The machine's apt may have the archive by a password. Nobody else learns it.
func TestTheArchivesPasswordIsNotShown(t *testing.T) {
	if _, err := os.Stat(keyring); err != nil {
		need(t, errNoKeyring)
	}
	a := apt{dir: filepath.Join(t.TempDir(), "debian"), wanted: versions()}
	a.archive = withSecurity(archive{main: "http://ann:hunter2@127.0.0.1:1/debian"})
	var said []string
	err := a.prepare(t.Context(), func(format string, words ...any) {
		said = append(said, fmt.Sprintf(format, words...))
	})
	if err == nil || strings.Contains(fmt.Sprint(said, err), "hunter2") {
		t.Errorf("%q, %v", said, err)
	}
	info, err := os.Stat(filepath.Join(a.dir, "sources.list"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its sources: %v, %v", info.Mode(), err)
	}
}

// An archive of the machine's that wants a password gets the one that the machine's apt has.
func TestAptKnowsTheMachinesPasswords(t *testing.T) {
	a := apt{dir: filepath.Join(t.TempDir(), "debian"), wanted: versions()}
	need(t, a.write(t.Context(), ""))
	where := []string{"shell", "F", "Dir::Etc::netrc/f", "D", "Dir::Etc::netrcparts/d"}
	want, err := command(t.Context(), "apt-config", where...).Output()
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.command(t.Context(), "apt-config", where...).Output()
	if err != nil || string(got) != string(want) || len(want) == 0 {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// TestSamePackagesSameBytes builds one runtime twice, with the caches' directories far apart.
func TestSamePackagesSameBytes(t *testing.T) {
	mirror(t)
	var sums [2][32]byte
	first := t.TempDir()
	for i, dir := range []string{first, filepath.Join(t.TempDir(), "another/place")} {
		if i == 1 { // the packages need not be downloaded again
			packages := os.DirFS(filepath.Join(first, "debian"))
			if err := os.CopyFS(filepath.Join(dir, "debian"), packages); err != nil {
				t.Fatal(err)
			}
		}
		b := open(t, dir)
		entry, err := b.Build(t.Context(), "python:3")
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(filepath.Join(entry, image.RootName))
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		sums[i] = [32]byte(h.Sum(nil))
	}
	if sums[0] != sums[1] {
		t.Error("the same packages gave different images")
	}
}
