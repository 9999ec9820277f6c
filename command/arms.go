package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/node-agent/arm"
)

// An armsFlag is the value of --arms: arms that are compared, separated by spaces.
type armsFlag struct{ to *[]arm.Arm }

func (v armsFlag) Type() string { return "arms" }

func (v armsFlag) String() string {
	if v.to == nil { // pflag asks a zero value, too
		return ""
	}
	var words []string
	for _, a := range *v.to {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

func (v armsFlag) Set(text string) (err error) {
	arms, err := arm.ParseList(text)
	if err == nil {
		*v.to = arms
	}
	return err
}

// onlyIn refuses arms that differ from none in another axis than these, or that are baselines. why
// says why a benchmark has no use for the others.
func onlyIn(arms []arm.Arm, why string, axes ...string) error {
	for _, a := range arms {
		if !a.ByVFIO() || a.Zeroed > 0 {
			return fmt.Errorf("--arms %s: a baseline is a whole start, and %s", a, why)
		}
		for _, axis := range a.Differing(arm.None) {
			if !slices.Contains(axes, axis) {
				return fmt.Errorf("--arms %s: %s, so %s does not matter here; there are %s", a, why,
					axis, strings.Join(axes, " and "))
			}
		}
	}
	return nil
}
