package ablation

import (
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"strings"
)

// Page is the name of the page in the folder of the figures.
const Page = "index.html"

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// Draw writes the figures and the page into a folder. command is the command line that made them.
func (r *Result) Draw(folder, command string) error {
	files, err := r.draw(command)
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(folder, "*.svg"))
	if err != nil {
		return err
	}
	for _, path := range old { // of an earlier result, whose figures may have been more
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// A shown figure is one as the page has it.
type shown struct {
	figure
	ID       string
	Drawings []drawing
	Command  string // that makes it
}

type drawing struct {
	Caption, File string
	SVG           template.HTML
}

// draw returns the files by name.
func (r *Result) draw(command string) (map[string][]byte, error) {
	files := map[string][]byte{}
	var all []shown
	for i, f := range r.figures() {
		s := shown{figure: f, ID: fmt.Sprintf("figure-%d", i+1), Command: command}
		if f.Missing != "" && len(f.Plots) == 0 {
			s.Command = ""
			if f.Wants != "" {
				s.Command = "fastiov bench startup " + f.Wants + " --plot DIR"
			}
		}
		for n, plot := range f.Plots {
			name := f.File
			if len(f.Plots) > 1 {
				name += string(rune('a' + n))
			}
			svg := plot.Plot.SVG(strings.TrimSpace(f.Title+" "+plot.Caption), f.Says)
			files[name+".svg"] = svg
			s.Drawings = append(s.Drawings, drawing{plot.Caption, name + ".svg",
				template.HTML(svg)}) // made of escaped texts and numbers
		}
		all = append(all, s)
	}
	var text strings.Builder
	err := page.Execute(&text, map[string]any{"Result": r, "Figures": all, "Command": command,
		"Simulated": r.Simulated, "Source": paperSource, "Rounds": len(r.rounds),
		"Starts": r.starts(), "Requested": r.requested(), "Unanswered": r.unanswered()})
	files[Page] = []byte(text.String())
	return files, err
}

func (r *Result) starts() (sum int) {
	for _, c := range r.Cells {
		sum += len(c.starts)
	}
	return sum
}

func (r *Result) requested() (sum int) {
	for _, c := range r.Cells {
		sum += c.Requested
	}
	return sum
}
