package knative

import (
	"net/http"
	"slices"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/net"
)

// The warnings with an answer have so many characters, or else each is cut to fewer, as
// Kubernetes has it.
const mostWarned, longestCut = 4 << 10, 256

// warnIn puts warnings into a header, each once. One that a header cannot have, such as one of two
// lines, is left out, as Kubernetes does.
func warnIn(h http.Header, texts []string) {
	var told []string
	all := 0
	for _, text := range texts {
		_, err := net.NewWarningHeader(299, "", text)
		if err == nil && text != "" && !slices.Contains(told, text) {
			told = append(told, text)
			all += utf8.RuneCountInString(text)
		}
	}
	cut := all > mostWarned
	for left := mostWarned; len(told) > 0 && left > 0; told = told[1:] {
		text := []rune(told[0])
		if cut {
			text = text[:min(len(text), longestCut)]
		}
		left -= len(text)
		header, _ := net.NewWarningHeader(299, "", string(text))
		h.Add("Warning", header)
	}
}
