package ablation

import (
	"fmt"
	"slices"
	"strings"
)

// where says of what starts a table is. Those without an answer are in none of its figures, and
// they are the slowest, since they ran into the deadline.
func where(cells []*Cell) string {
	answered, requested := 0, 0
	for _, c := range cells {
		answered, requested = answered+c.Answered, requested+c.Requested
	}
	return fmt.Sprintf("%d at once, %d MiB each, %d/%d answered", cells[0].N, cells[0].MemoryMiB,
		answered, requested)
}

func (c *Cell) answered() string { return fmt.Sprintf("%d/%d", c.Answered, c.Requested) }

// leftOut names the arms that were asked for and that cells do not have.
func (r *Result) leftOut(cells []*Cell) string {
	var names []string
	for _, asked := range r.Cells {
		if !slices.Contains(names, asked.Arm) && !slices.ContainsFunc(cells, func(c *Cell) bool {
			return c.Arm == asked.Arm
		}) {
			names = append(names, asked.Arm)
		}
	}
	if len(names) == 0 || len(cells) == 0 {
		return ""
	}
	return fmt.Sprintf("Left out, since no start of %s was answered of %d at once with %d MiB: %s.",
		cells[0].Function, cells[0].N, cells[0].MemoryMiB, strings.Join(names, ", "))
}

// unanswered names what was played and never answered.
func (r *Result) unanswered() (names []string) {
	for _, c := range r.Cells {
		if c.Requested > 0 && len(c.starts) == 0 {
			names = append(names, fmt.Sprintf("%s, %s, %d at once, %d MiB: %s", c.Arm, c.Function,
				c.N, c.MemoryMiB, c.answered()))
		}
	}
	return names
}
