package ablation

import "github.com/fastiov/fastiov/node-agent/api/timeline"

// The figures of the FastIOV paper (EuroSys 2025) that its text and its Table 1 state: 200 starts
// at once of guests with 512 MiB on two sockets of 28 cores, Linux 6.4, Kata and QEMU 6.2. What the
// text gives as a percentage is kept as one.
const (
	paperMean     = 16.2 // s, the average of stock software
	paperOverhead = 12.2 // s, of that for the VF
	paperSource   = "FastIOV, EuroSys 2025"
)

// paperShares has Table 1: the stages' shares of the average start and of the 99th percentile, in
// per cent.
var paperShares = []struct {
	stage     timeline.Stage
	mean, p99 float64
}{
	{timeline.Cgroup, 2.9, 2.3},
	{timeline.DMARAM, 13.0, 11.1},
	{timeline.Virtiofs, 13.3, 13.6},
	{timeline.DMAImage, 5.6, 4.3},
	{timeline.VFIODev, 48.1, 59.0},
	{timeline.VFDriver, 3.4, 4.1},
}

// The sums of Table 1 over the VF-related stages.
const paperVFMean, paperVFP99 = 70.1, 80.8

// A paperArm is a bar of the paper's Fig. 11: its average in per cent of the stock start.
type paperArm struct {
	name, ours string // ours: the arm here that comes nearest; empty: there is none
	percent    float64
	vf         float64 // the VF-related part; 0: the text does not say
}

var paperArms = []paperArm{
	{"No-Net", "nonet", 100 * (paperMean - paperOverhead) / paperMean, 0},
	{"Vanilla", "paper-2024,s=0", 100, paperVFMean},
	{"FastIOV", "paper", 100 - 65.7, paperVFMean * (1 - 0.961)},
	{"FastIOV-L", "paper,l=bus", 100 - 21.8, 0},
	{"FastIOV-A", "paper,a=0", 100 - 40.3, 0},
	{"FastIOV-S", "paper,s=0", 100 - 58.2, 0},
	{"FastIOV-D", "paper,d=eager,barrier=strict", 100 - 43.7, 0},
	{"Pre100", "pre100,l=bus", (100 - 65.7) / (1 - 0.564), 0},
}

// paperTails has what the text says of Fig. 12: how much longer than without a network the average
// and the 99th percentile are, in per cent.
var paperTails = []struct {
	name      string
	mean, p99 float64
}{{"Vanilla", 305.2, 354.5}, {"FastIOV", 39.1, 11.6}}
