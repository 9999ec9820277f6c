package command

import (
	"fmt"
	"slices"
)

// A choice is the value of a flag that is one of a few words.
type choice struct {
	word *string
	of   []string
}

// chosen returns a choice that is the first of the words.
func chosen(word *string, of ...string) choice {
	*word = of[0]
	return choice{word, of}
}

func (c choice) Type() string { return "string" }

func (c choice) String() string {
	if c.word == nil { // pflag asks a zero value, too
		return ""
	}
	return *c.word
}

func (c choice) Set(word string) error {
	if !slices.Contains(c.of, word) {
		return fmt.Errorf("there is no %q; there are %s", word, listed(c.of, "and"))
	}
	*c.word = word
	return nil
}

// listed returns words as a sentence has them, as in "a, b and c".
func listed(words []string, and string) (text string) {
	for i, word := range words {
		switch {
		case i > 0 && i == len(words)-1:
			text += " " + and + " "
		case i > 0:
			text += ", "
		}
		text += word
	}
	return text
}
