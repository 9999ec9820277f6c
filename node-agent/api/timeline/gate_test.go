package timeline

import (
	"testing"
	"time"
)

func TestAlone(t *testing.T) {
	for _, c := range []struct {
		name  string
		spans []Span
		held  Span
		want  time.Duration
	}{
		{"never open", []Span{span(Agent, 0, 100)}, Span{}, 0},
		{"between others", []Span{span(Agent, 0, 40), span(VFDriver, 40, 90), span(AppInit, 90, 100)}, Span{}, ms(50)},
		{"beside another", []Span{span(Agent, 0, 60), span(VFDriver, 40, 90)}, Span{}, ms(30)},
		{"inside another", []Span{span(Agent, 0, 100), span(VFDriver, 40, 90)}, Span{}, 0},
		{"packets were held", []Span{span(Agent, 0, 100), span(VFDriver, 40, 90)}, span(VFDriver, 60, 90), ms(30)},
		{"longer than the start", []Span{span(Agent, 0, 50), span(VFDriver, 40, 190)}, span(VFDriver, 30, 190), ms(70)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Alone(VFDriver, c.spans, c.held, at(0), at(100)); got != c.want {
				t.Errorf("%v alone, want %v", got, c.want)
			}
		})
	}
}
