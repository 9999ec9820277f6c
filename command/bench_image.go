package command

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench/kept"
	"github.com/fastiov/fastiov/bench/pull"
	"github.com/fastiov/fastiov/node-agent/image/build"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

const (
	imageNode = "image-node"
	pullsFile = "pulls.jsonl" // holds the pulls, in the folder of --plot
	firstPull = "first"       // the image that receivers begin with
)

// imageNodeCmd is a process of bench image: it pulls as a node does.
func imageNodeCmd() *cobra.Command {
	return &cobra.Command{Use: imageNode + " DIR REGISTRY", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return pull.Serve(cmd.Context(), args[0], args[1], os.Stdin, cmd.OutOrStdout())
		}}
}

// benchImage compares pulls with containerd's.
func benchImage() *cobra.Command {
	var (
		b            pull.Bench
		images, arms []string
		folder       string
		asJSON       bool
	)
	cmd := &cobra.Command{Use: "image", Short: "Compare cold pulls of images with containerd's, " +
		"in turn, and draw the Poby paper's figures"}
	f := cmd.Flags()
	f.StringSliceVar(&images, "images", build.Samples, "images of Debian's packages; "+
		"also eight/N, the lowest N layers, and deal/N, N layers of equal contents")
	f.StringSliceVar(&arms, "arms", pullArms, "who pulls; ratios are to the first")
	f.IntSliceVar(&b.Mbits, "mbits", []int{0}, "bandwidths of the registry, Mbit/s; 0: no bound")
	f.IntSliceVar(&b.CPUs, "cpus", []int{0}, "how many CPUs who pulls may use; 0: all")
	f.IntVar(&b.Rounds, "rounds", 5, "how many pulls of each")
	f.StringVar(&b.Dir, "dir", "", "folder for those who pull; by default one in the cache")
	f.StringVar(&folder, "plot", "",
		"folder that keeps the pulls and gets the figures; what it has is not measured again")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if os.Geteuid() != 0 {
			return errors.New("containerd unpacks as root: run this as root")
		}
		builder, err := build.Open("", cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		defer builder.Close()
		b.Out = cmd.ErrOrStderr()
		if b.Dir == "" {
			b.Dir = filepath.Join(builder.Dir(), "tmp")
		}
		if err := findImages(cmd, builder, &b, images); err != nil {
			return err
		}
		for _, name := range arms {
			arm, err := pullArm(cmd, builder, name)
			if err != nil {
				return err
			}
			b.Arms = append(b.Arms, arm)
		}
		return comparePulls(cmd, &b, folder, asJSON)
	}
	return cmd
}

func findImages(cmd *cobra.Command, from *build.Builder, b *pull.Bench, names []string) error {
	for _, name := range append([]string{firstPull}, names...) {
		s, err := from.Sample(cmd.Context(), name)
		if err != nil {
			return err
		}
		digest, err := pull.DigestOf(s.Dir)
		if err != nil {
			return err
		}
		b.Images = append(b.Images, pull.Image{Name: name, Digest: digest, Layers: s.Layers,
			Bytes: s.Bytes, Whole: s.Whole, Files: s.Files, Dir: s.Dir})
	}
	b.First, b.Images = b.Images[0], b.Images[1:]
	return nil
}

func comparePulls(cmd *cobra.Command, b *pull.Bench, folder string, asJSON bool) (err error) {
	if b.Kept, err = kept.Open[pull.Round](folder, pullsFile); err != nil {
		return err
	}
	defer b.Kept.Close()
	result, err := b.Run(cmd.Context())
	if err != nil {
		return err
	}
	if folder != "" {
		if err := result.Draw(folder, commandLine()); err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "image  see %s\n", filepath.Join(folder, pull.Page))
	}
	return show(cmd, result, asJSON)
}

// Who pulls.
const (
	oursPulls    = "fastiov"
	debianPulls  = "containerd-1.6"
	overlayPulls = "containerd-2.4"
	indexPulls   = "containerd-2.4-erofs-index"
	erofsPulls   = "containerd-2.4-erofs"
)

var pullArms = []string{oursPulls, debianPulls, overlayPulls, indexPulls, erofsPulls}

// pullArm returns an arm by its name. The newer containerd is built where it is wanted.
func pullArm(cmd *cobra.Command, b *build.Builder, name string) (pull.Arm, error) {
	inflates := "; no igzip on the PATH"
	if oci.FindIgzip() != nil {
		inflates = "; igzip on the PATH"
	}
	switch name {
	case oursPulls:
		self, err := os.Executable()
		return pull.Arm{Name: name, About: version + inflates,
			New: func(host string) pull.Receiver {
				return &pull.Ours{Command: []string{self, "bench", imageNode}, Host: host}
			}}, err
	case debianPulls:
		return debianArm(name)
	case overlayPulls, indexPulls, erofsPulls:
		dir, release, err := b.Containerd(cmd.Context())
		if err != nil {
			return pull.Arm{}, err
		}
		c := pull.Containerd{Dir: dir, Snapshotter: "overlayfs", Config: pull.Overlayfs}
		into := "overlayfs"
		if name != overlayPulls {
			tools, err := b.MkfsEROFS(cmd.Context())
			if err != nil {
				return pull.Arm{}, err
			}
			c = pull.Containerd{Dir: dir, Snapshotter: "erofs", Config: pull.EROFS,
				Path: []string{tools}}
			into = "EROFS"
		}
		if name == indexPulls {
			c.Config, into = pull.EROFSIndex, "EROFS by tar index"
		}
		about := release + ", " + into + ", multipart fetch, parallel unpacking" + inflates
		return containerdArm(name, about, c), nil
	}
	return pull.Arm{}, fmt.Errorf("nobody called %q pulls; there are %s", name,
		strings.Join(pullArms, ", "))
}

// debianArm is this machine's own containerd as it comes. It inflates by unpigz where that is on
// the PATH, and by Go's gzip else.
func debianArm(name string) (pull.Arm, error) {
	program, err := exec.LookPath("containerd")
	if err != nil {
		return pull.Arm{}, fmt.Errorf("%w; install the package containerd", err)
	}
	out, err := exec.Command(program, "--version").Output()
	if err != nil {
		return pull.Arm{}, err
	}
	about := strings.Fields(string(out))[2] + ", overlayfs, default; "
	if _, err := exec.LookPath("unpigz"); err == nil {
		about += "unpigz on the PATH"
	} else {
		about += "Go's gzip"
	}
	return containerdArm(name, about, pull.Containerd{Dir: filepath.Dir(program),
		Snapshotter: "overlayfs", Config: pull.Default}), nil
}

func containerdArm(name, about string, c pull.Containerd) pull.Arm {
	return pull.Arm{Name: name, About: about,
		New: func(string) pull.Receiver { fresh := c; return &fresh }}
}
