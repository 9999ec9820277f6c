package couchtest

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
)

// The rules for the fields of an activation's document.
var (
	text   = func(v any) bool { s, is := v.(string); return is && s != "" }
	whole  = func(v any) bool { n, is := v.(float64); return is && n == math.Trunc(n) && n >= 0 }
	millis = func(v any) bool {
		n, is := v.(float64)
		return is && n == math.Trunc(n) && n > 1.6e12
	}
	truth  = func(v any) bool { _, is := v.(bool); return is }
	number = regexp.MustCompile(`^\d+\.\d+\.\d+$`)
	hex32  = regexp.MustCompile(`^[0-9a-zA-Z]{32}$`)
)

var fields = map[string]func(any) bool{
	"_id": text, "namespace": text, "name": text, "subject": text, "publish": truth,
	"activationId": func(v any) bool { s, is := v.(string); return is && hex32.MatchString(s) },
	"version":      func(v any) bool { s, is := v.(string); return is && number.MatchString(s) },
	"start":        millis, "end": millis, "updated": millis, "duration": whole,
	"entityType":  func(v any) bool { return v == "activation" },
	"response":    response,
	"logs":        lines,
	"annotations": annotations,
}

var optional = map[string]func(any) bool{"cause": fields["activationId"]}

var annotated = map[string]func(any) bool{
	"path": text, "kind": text, "timeout": truth, "waitTime": whole, "initTime": whole,
	"binding":  text,
	"causedBy": func(v any) bool { return v == "sequence" },
	"limits": func(v any) bool {
		limits, is := v.(map[string]any)
		for _, name := range []string{"timeout", "memory", "logs", "concurrency"} {
			is = is && whole(limits[name])
		}
		return is && len(limits) == 4
	},
	"coldStart": func(v any) bool { _, is := v.(map[string]any); return is }, // our own
}

func response(v any) bool {
	given, is := v.(map[string]any)
	code, known := given["statusCode"].(float64)
	if !is || !known || !slices.Contains([]float64{0, 1, 2, 3}, code) || !whole(given["size"]) ||
		len(given) != 3 {
		return false
	}
	switch result := given["result"].(type) {
	case map[string]any:
		return code == 0 || result["error"] != nil
	case []any:
		return true
	default:
		return false
	}
}

func lines(v any) bool {
	list, is := v.([]any)
	for _, line := range list {
		_, isText := line.(string)
		is = is && isText
	}
	return is
}

func annotations(v any) bool {
	list, is := v.([]any)
	seen := map[string]bool{}
	for _, entry := range list {
		pair, isPair := entry.(map[string]any)
		key, _ := pair["key"].(string)
		check, known := annotated[key]
		if !isPair || len(pair) != 2 || !known || seen[key] || !check(pair["value"]) {
			return false
		}
		seen[key] = true
	}
	return is && seen["path"] && seen["kind"]
}

// faults returns the faults of a document that is to be kept under id.
func faults(id string, doc map[string]any) (wrong []string) {
	for name, check := range fields {
		if value, found := doc[name]; !found {
			wrong = append(wrong, name+" is missing")
		} else if !check(value) {
			given, _ := json.Marshal(value)
			wrong = append(wrong, fmt.Sprintf("%s is %s", name, given))
		}
	}
	for name, value := range doc {
		if check, allowed := optional[name]; fields[name] == nil && (!allowed || !check(value)) {
			wrong = append(wrong, fmt.Sprintf("%s is there, as %v", name, value))
		}
	}
	if want := fmt.Sprintf("%s/%s", doc["namespace"], doc["activationId"]); doc["_id"] != id ||
		id != want {
		wrong = append(wrong, fmt.Sprintf("_id is %v, the path says %s, its fields say %s",
			doc["_id"], id, want))
	}
	if start, end := doc["start"], doc["end"]; millis(start) && millis(end) &&
		start.(float64) > end.(float64) {
		wrong = append(wrong, "it ends before it starts")
	}
	return wrong
}
