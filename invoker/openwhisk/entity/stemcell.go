package entity

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// A StemCell says how many sandboxes of that memory are to be started before any call asks for
// them.
type StemCell struct {
	Count    int       `json:"initialCount"`
	Memory   Memory    `json:"memory"`
	Reactive *Reactive `json:"reactive,omitempty"` // nil: there are always as many
}

// Reactive makes the number follow the cold starts that a stem cell would have spared. In each TTL
// after the first there are Increment for every Threshold of them in the one before, but Min at
// least and Max at most.
type Reactive struct {
	Min       int  `json:"minCount"`
	Max       int  `json:"maxCount"`
	TTL       Span `json:"ttl"`
	Threshold int  `json:"threshold"`
	Increment int  `json:"increment"`
}

// check refuses what OpenWhisk refuses.
func (c *StemCell) check() error {
	if c.Count < 1 || c.Memory < 1 {
		return errors.New("initialCount and memory must be more than nothing")
	}
	r := c.Reactive
	switch {
	case r == nil:
	case r.Min < 0 || r.Max < max(r.Min, 1):
		return fmt.Errorf(
			"minCount is %d and maxCount %d; they must be 0 <= minCount <= maxCount, and maxCount 1 or more",
			r.Min, r.Max)
	case r.TTL <= 0 || r.Threshold < 1:
		return errors.New("ttl and threshold must be more than nothing")
	case r.Increment < 1 || r.Increment > r.Max:
		return fmt.Errorf("increment is %d; it must be from 1 to maxCount, %d", r.Increment, r.Max)
	}
	return nil
}

// Memory is a number of MiB, written as "256 MB".
type Memory int

// UnmarshalJSON reads a number with its unit.
func (m *Memory) UnmarshalJSON(content []byte) error {
	number, unit, text, err := quantity(content)
	factor := map[string]int{"MB": 1, "m": 1, "GB": 1024, "g": 1024}[unit]
	if err != nil || number > 1<<20 || factor == 0 {
		return fmt.Errorf("memory %q; it must be like 256 MB", text)
	}
	*m = Memory(number * factor)
	return nil
}

// MarshalJSON writes it as it is read.
func (m Memory) MarshalJSON() ([]byte, error) { return json.Marshal(fmt.Sprintf("%d MB", m)) }

// A Span is a time, written as "2 minutes".
type Span time.Duration

var spanUnits = []struct {
	names []string // the last is that which is written
	unit  time.Duration
}{
	{[]string{"d", "day", "days"}, 24 * time.Hour},
	{[]string{"h", "hr", "hrs", "hour", "hours"}, time.Hour},
	{[]string{"m", "min", "mins", "minute", "minutes"}, time.Minute},
	{[]string{"s", "sec", "secs", "second", "seconds"}, time.Second},
	{[]string{"ms", "milli", "millis", "millisecond", "milliseconds"}, time.Millisecond},
}

// UnmarshalJSON reads a number with its unit.
func (s *Span) UnmarshalJSON(content []byte) error {
	number, unit, text, err := quantity(content)
	for _, u := range spanUnits {
		for _, name := range u.names {
			if name == unit && err == nil && number <= 1<<20 {
				*s = Span(time.Duration(number) * u.unit)
				return nil
			}
		}
	}
	return fmt.Errorf("time %q; it must be like 2 minutes", text)
}

// MarshalJSON writes the span as a whole number of the largest unit possible.
func (s Span) MarshalJSON() ([]byte, error) {
	last := len(spanUnits) - 1
	for i, u := range spanUnits {
		if n := time.Duration(s) / u.unit; n*u.unit == time.Duration(s) || i == last {
			return json.Marshal(fmt.Sprintf("%d %s", n, u.names[len(u.names)-1]))
		}
	}
	return nil, nil
}

var aQuantity = regexp.MustCompile(`^\s*(\d+)\s*([a-zA-Z]+)\s*$`)

// quantity takes a text apart into a number and its unit.
func quantity(content []byte) (number int, unit, text string, err error) {
	if err := json.Unmarshal(content, &text); err != nil {
		return 0, "", string(content), err
	}
	parts := aQuantity.FindStringSubmatch(text)
	if parts == nil {
		return 0, "", text, errors.New("it is no number with a unit")
	}
	number, err = strconv.Atoi(parts[1])
	return number, parts[2], text, err
}
