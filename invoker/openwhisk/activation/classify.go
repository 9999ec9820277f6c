package activation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// MaxResult bounds an action's result.
const MaxResult = 1 << 20

// Classify returns the meaning of a runtime's answer to /run.
func Classify(httpStatus int, body []byte) Response {
	if len(body) > MaxResult {
		return failure(ApplicationError,
			"The action produced a response that exceeded the allowed length: %d > %d bytes.",
			len(body), MaxResult)
	}
	body = bytes.TrimSpace(body)
	if !json.Valid(body) || len(body) == 0 || body[0] != '{' && body[0] != '[' {
		return failure(DeveloperError,
			"The action did not produce a valid response and exited unexpectedly: HTTP %d %q",
			httpStatus, begin(body))
	}
	body = compact(body)
	switch {
	case httpStatus != 200:
		return Response{DeveloperError, errorObject(body)}
	case hasError(body):
		return Response{ApplicationError, body}
	default:
		return Response{Success, body}
	}
}

// ClassifyInit returns the meaning of a runtime's refusal of /init.
func ClassifyInit(httpStatus int, body []byte) Response {
	body = bytes.TrimSpace(body)
	if len(body) <= MaxResult && json.Valid(body) && hasError(body) {
		return Response{DeveloperError, compact(body)}
	}
	return failure(DeveloperError, "The action failed to initialize: HTTP %d %q",
		httpStatus, begin(body))
}

// TimedOut is the response of an action that ran into its time limit.
func TimedOut(limitMs int) Response {
	return failure(DeveloperError, "The action exceeded its time limits of %d milliseconds.",
		limitMs)
}

// Failed is the response of an activation that failed for the reason given.
func Failed(status Status, reason string) Response { return failure(status, "%s", reason) }

func failure(status Status, format string, args ...any) Response {
	result, err := json.Marshal(map[string]string{"error": fmt.Sprintf(format, args...)})
	if err != nil {
		panic(err) // a map of strings always marshals
	}
	return Response{status, result}
}

func hasError(body []byte) bool {
	if !bytes.Contains(body, []byte("error")) && !bytes.Contains(body, []byte(`\u`)) {
		return false // however it is nested or escaped: most answers need no second look
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(body, &object) != nil {
		return false
	}
	_, found := object["error"]
	return found
}

// errorObject is body if it names its error, else an error that quotes it.
func errorObject(body []byte) json.RawMessage {
	if hasError(body) {
		return body
	}
	return failure(DeveloperError,
		"The action did not produce a valid response and exited unexpectedly: %s",
		begin(body)).Result
}

func compact(body []byte) []byte {
	if !bytes.ContainsAny(body, " \t\r\n") {
		return body
	}
	var out bytes.Buffer
	if json.Compact(&out, body) != nil {
		return body
	}
	return out.Bytes()
}

// begin is the begin of an answer that nobody could make sense of.
func begin(body []byte) string {
	const most = 200
	if len(body) <= most {
		return string(body)
	}
	return strings.ToValidUTF8(string(body[:most]), "") + "…"
}
