package command

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// onImages returns a command on the container images in the cache.
func onImages(use, short string, args cobra.PositionalArgs,
	run func(cmd *cobra.Command, cache *image.Cache, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			cache, err := image.Open("", cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer cache.Close()
			yieldToStarts(cache)
			return run(cmd, cache, args)
		}}
}

// yieldToStarts lets the pulls of starts, which somebody waits for, go before this command. Threads
// and processes that come later have the priority of those that began them.
func yieldToStarts(cache *image.Cache) {
	cache.Aside = true
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		own, bad := unix.Getpriority(unix.PRIO_PROCESS, id)
		if err == nil && bad == nil && 20-own < aside { // the system call returns 20-nice
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, aside)
		}
	}
}

const aside = 10 // the niceness of builders, too

// ofNamespace adds the flag that chooses among images of one name, and returns what was chosen: nil
// means all.
func ofNamespace(cmd *cobra.Command) func() *string {
	namespace := cmd.Flags().String("namespace", "", "only what this namespace pulled; \"\" has "+
		"what everybody may have (default: all)")
	return func() *string {
		if !cmd.Flags().Changed("namespace") {
			return nil
		}
		return namespace
	}
}

// imageHere is an image as `fastiov image ls --json` prints it.
type imageHere struct {
	Image     string    `json:"image"`
	Namespace string    `json:"namespace"`
	Digest    string    `json:"digest"`
	Bytes     int64     `json:"bytes"`
	Unique    int64     `json:"uniqueBytes"`
	LastUsed  time.Time `json:"lastUsed"`
	Sandboxes []string  `json:"sandboxes"`
	Processes []int     `json:"processes"`
	Loaded    bool      `json:"loaded"`
	Pinned    bool      `json:"pinned"`
}

func imageLs() *cobra.Command {
	var asJSON bool
	var runDir string
	cmd := onImages("ls", "List the container images that are here, what they take of the disk, "+
		"and who uses them", cobra.NoArgs,
		func(cmd *cobra.Command, cache *image.Cache, _ []string) error {
			sandboxes := sandboxesByImage(cmd, runDir)
			list := []imageHere{}
			for _, l := range cache.Images() {
				list = append(list, imageHere{
					Image: l.Ref, Namespace: l.Namespace, Digest: l.Digest, Bytes: l.Bytes,
					Unique: l.Unique, LastUsed: l.Used, Loaded: l.Loaded, Pinned: l.Pinned,
					Sandboxes: append([]string{}, sandboxes[l.Ref]...),
					Processes: append([]int{}, l.Users...),
				})
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(list)
			}
			printImages(cmd, cache, list)
			return nil
		})
	runDirFlag(cmd.Flags(), &runDir)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// sandboxesByImage asks the agent of this machine, if there is one, which sandboxes have an image.
func sandboxesByImage(cmd *cobra.Command, runDir string) map[string][]string {
	node, hangUp, err := dialNode(runDir)
	if err != nil {
		return nil
	}
	defer hangUp()
	status, err := node.Status(cmd.Context(), &api.StatusRequest{})
	if err != nil {
		return nil
	}
	by := map[string][]string{}
	for _, s := range status.Sandboxes {
		by[oci.InFull(s.Image)] = append(by[oci.InFull(s.Image)], s.Id)
	}
	return by
}

func printImages(cmd *cobra.Command, cache *image.Cache, list []imageHere) {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "IMAGE\tNAMESPACE\tDIGEST\tSIZE\tUNIQUE\tLAST USED\tUSED BY\t")
	for _, l := range list {
		var by, kept []string
		if len(l.Sandboxes) > 0 {
			by = append(by, fmt.Sprintf("%d sandboxes", len(l.Sandboxes)))
		}
		for _, pid := range l.Processes {
			by = append(by, fmt.Sprintf("process %d", pid))
		}
		if l.Pinned {
			kept = append(kept, "pinned")
		}
		if l.Loaded {
			kept = append(kept, "loaded")
		}
		fmt.Fprintf(w, "%s\t%s\t%.19s\t%.1f MB\t%.1f MB\t%s ago\t%s\t%s\n", l.Image, l.Namespace,
			l.Digest, float64(l.Bytes)/1e6, float64(l.Unique)/1e6,
			time.Since(l.LastUsed).Round(time.Second), strings.Join(by, ", "),
			strings.Join(kept, ", "))
	}
	w.Flush()
	holds, limit := cache.Usage()
	fmt.Fprintf(cmd.OutOrStdout(), "\n%s holds %d of %d MiB, with what the builder made\n",
		cache.Dir(), holds>>20, limit>>20)
}

func imageRm() *cobra.Command {
	var of func() *string
	cmd := onImages("rm IMAGE...", "Remove container images that nobody uses",
		cobra.MinimumNArgs(1),
		func(_ *cobra.Command, cache *image.Cache, refs []string) error {
			for _, ref := range refs {
				if err := cache.Remove(ref, of()); err != nil {
					return err
				}
			}
			return nil
		})
	of = ofNamespace(cmd)
	return cmd
}

func imagePrune() *cobra.Command {
	return onImages("prune", "Remove the container images that nobody uses and nobody pinned",
		cobra.NoArgs, func(cmd *cobra.Command, cache *image.Cache, _ []string) error {
			images, bytes := cache.Prune()
			fmt.Fprintf(cmd.OutOrStdout(), "%d images removed, %.1f MB free again\n", images,
				float64(bytes)/1e6)
			return nil
		})
}

func imagePin() *cobra.Command {
	var undo bool
	var of func() *string
	cmd := onImages("pin IMAGE...", "Keep container images, however long nobody uses them",
		cobra.MinimumNArgs(1),
		func(cmd *cobra.Command, cache *image.Cache, refs []string) error {
			for _, ref := range refs {
				if err := cache.Pin(cmd.Context(), ref, of(), !undo); err != nil {
					return err
				}
			}
			return nil
		})
	cmd.Flags().BoolVar(&undo, "undo", false, "keep them no longer than others")
	of = ofNamespace(cmd)
	return cmd
}

func imageLoad() *cobra.Command {
	return onImages("load FILE|DIR|- [NAME]", "Take images from an OCI layout or from what "+
		"`docker save` wrote, - from standard input; every namespace may start them",
		cobra.RangeArgs(1, 2),
		func(cmd *cobra.Command, cache *image.Cache, args []string) (err error) {
			var refs []string
			called := strings.Join(args[1:], "")
			if args[0] == "-" {
				refs, err = cache.LoadFrom(cmd.Context(), cmd.InOrStdin(), called)
			} else {
				refs, err = cache.Load(cmd.Context(), args[0], called)
			}
			for _, ref := range refs {
				fmt.Fprintln(cmd.OutOrStdout(), ref)
			}
			return err
		})
}
