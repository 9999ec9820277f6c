package image

import (
	"fmt"
	"strings"
	"time"
)

// A Policy says when a registry is asked what a tag stands for that is here, in the words of
// Kubernetes or by the age of the last answer. What is known by its digest, or was loaded from an
// archive, is never asked for again. The zero Policy asks after tagAge.
type Policy struct {
	text  string
	after time.Duration
	never bool // to pull at all
}

// DefaultPolicy is the zero Policy's text.
var DefaultPolicy = tagAge.String()

const forever = 100 * 365 * 24 * time.Hour

// Set implements pflag.Value.
func (p *Policy) Set(text string) error {
	switch text {
	case "Always":
		*p = Policy{text: text, after: -1} // too old at once
	case "IfNotPresent":
		*p = Policy{text: text, after: forever}
	case "Never":
		*p = Policy{text: text, after: forever, never: true}
	default:
		after, err := time.ParseDuration(text)
		if err != nil || after <= 0 {
			return fmt.Errorf("%q is neither Always, IfNotPresent nor Never, nor a time as 5m",
				text)
		}
		*p = Policy{text: text, after: after}
	}
	return nil
}

func (p *Policy) String() string {
	if p.text == "" {
		return DefaultPolicy
	}
	return p.text
}

// Type implements pflag.Value.
func (p *Policy) Type() string { return "policy" }

// age returns how long it counts what a tag stood for.
func (p *Policy) age() time.Duration {
	if p.after == 0 {
		return tagAge
	}
	return p.after
}

// until returns when a name has to be looked up again; zero: never.
func (p *Policy) until(n Name) time.Time {
	if n.Loaded || fixed(n.Ref) {
		return time.Time{}
	}
	return n.At.Add(p.age())
}

// fixed reports whether a reference stands for the same image for ever.
func fixed(ref string) bool { return strings.Contains(ref, "@") }
