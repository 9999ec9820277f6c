package command

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/image"
)

// pulled holds what a pull came to, as JSON.
type pulled struct {
	Image    string             `json:"image"`
	Root     string             `json:"root"`
	Layers   []string           `json:"layers"`
	Seconds  float64            `json:"seconds"`
	Received int64              `json:"receivedBytes"`
	Archives int64              `json:"archiveBytes"`
	Names    int                `json:"names"`
	Stages   map[string]float64 `json:"stageSeconds"` // each for itself; they overlap
}

func imagePull() *cobra.Command {
	var registries registryFlags
	var asJSON bool
	var namespace string
	cmd := &cobra.Command{
		Use:   "pull IMAGE...",
		Short: "Pull container images into the cache, so that starts find them there",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cache, err := image.Open("", cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer cache.Close()
			yieldToStarts(cache)
			if err := registries.apply(cache); err != nil {
				return err
			}
			if err := cache.Policy.Set("Always"); err != nil {
				return err
			}
			for _, ref := range args {
				var report image.Report
				cache.Pulled = func(r image.Report) { report = r }
				begin := time.Now()
				r, release, err := cache.Pull(cmd.Context(), ref, namespace)
				if err != nil {
					return err
				}
				release()
				p := pulled{Image: ref, Root: r.Root, Layers: r.Layers,
					Seconds: time.Since(begin).Seconds(), Received: report.Received,
					Archives: report.Archives, Names: report.Names, Stages: map[string]float64{}}
				for stage, took := range report.Stages {
					p.Stages[stage] = took.Seconds()
				}
				if asJSON {
					err = json.NewEncoder(cmd.OutOrStdout()).Encode(p)
				} else {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), p)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one line an image")
	cmd.Flags().StringVar(&namespace, "namespace", "",
		"the namespace whose credentials are used")
	registries.flags(cmd.Flags())
	return cmd
}

func (p pulled) String() string {
	var stages []string
	for _, stage := range image.Stages {
		stages = append(stages, fmt.Sprintf("%s %.2f", stage, p.Stages[stage]))
	}
	return fmt.Sprintf("%s: %d layers, %.1f MB fetched, %.1f MB unpacked, %.2f s\nstages in s, "+
		"which overlap: %s\nroot: %s", p.Image, len(p.Layers), float64(p.Received)/1e6,
		float64(p.Archives)/1e6, p.Seconds, strings.Join(stages, ", "), p.Root)
}
