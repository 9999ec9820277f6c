package couch

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch/couchtest"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
	"github.com/fastiov/fastiov/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func open(t *testing.T) (*couchtest.Server, *Client) {
	t.Helper()
	s := couchtest.New(t)
	c := New(Config{URL: s.URL, User: couchtest.User, Password: couchtest.Password})
	c.pause = time.Millisecond
	t.Cleanup(c.Close)
	return s, c
}

// action is the document of an action whose exec is given.
func action(exec string) string {
	return `{"namespace":"guest/pkg","name":"hello","exec":` + exec + `,"parameters":[],"limits":{"timeout":60000,"memory":256,"logs":10,"concurrency":1},
	 "version":"0.0.3","publish":false,"annotations":[{"key":"provide-api-key","value":false},{"key":"exec","value":"python:3"}],"updated":1700000000000,"entityType":"action"}`
}

const id = "guest/pkg/hello"

func TestTheWaysCodeIsKept(t *testing.T) {
	source := "def main(args): return args # é"
	archive := []byte{'P', 'K', 0, 0xff}
	sum := sha256.Sum256([]byte(source))
	inlined := fmt.Sprintf(
		`{"attachmentName":"mem:%s","attachmentType":"text/plain","length":%d,"digest":"sha256-%s"}`,
		base64.URLEncoding.EncodeToString([]byte(source)), len(source), hex.EncodeToString(sum[:]))
	for name, c := range map[string]struct {
		exec   string
		code   string
		binary bool
	}{
		"as text":                {`{"kind":"python:3","code":"def main(args): return args # é","binary":false}`, source, false},
		"as text that is base64": {`{"kind":"python:3","code":"UEsA/w=="}`, "UEsA/w==", true},
		"inlined":                {`{"kind":"python:3","code":` + inlined + `,"binary":false}`, source, false},
		"attached":               {`{"kind":"python:3","code":{"attachmentName":"couch:a1-b2","attachmentType":"application/octet-stream"},"binary":true}`, "UEsA/w==", true},
		"attached, of old":       {`{"kind":"java:8","jar":{"attachmentName":"a1-b2","attachmentType":"application/java-archive"},"binary":true}`, "UEsA/w==", true},
		"not at all":             {`{"kind":"blackbox","image":"example/it"}`, "", false},
	} {
		s, client := open(t)
		rev := s.PutAction(action(c.exec), map[string][]byte{"a1-b2": archive})
		a, err := client.Action(t.Context(), id)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if a.Exec.Code != c.code || a.Exec.Binary != c.binary || a.Revision != rev || a.ID != id ||
			a.Limits.MemoryMB != 256 {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

func TestWhatIsNoActionIsSaidToBeNone(t *testing.T) {
	for name, doc := range map[string]string{
		"a trigger":           `{"namespace":"guest/pkg","name":"hello","entityType":"trigger","exec":{"kind":"python:3"}}`,
		"a sequence":          action(`{"kind":"sequence","components":[]}`),
		"no kind":             action(`{}`),
		"a number for a kind": action(`{"kind":7}`),
		"a number for code":   action(`{"kind":"python:3","code":7}`),
		"bad inlined code":    action(`{"kind":"python:3","code":{"attachmentName":"mem:***"}}`),
	} {
		s, client := open(t)
		s.PutAction(doc, nil)
		var mismatch *ErrMismatch
		if a, err := client.Action(t.Context(), id); !errors.As(err, &mismatch) {
			t.Errorf("%s: %v %+v", name, err, a)
		}
	}
	s, client := open(t)
	if _, err := client.Action(t.Context(), id); !errors.Is(err, ErrNotFound) {
		t.Errorf("nothing: %v", err)
	}
	for name, code := range map[string]string{
		"an external store":       `{"attachmentName":"s3:abc"}`,
		"a wrong length":          `{"attachmentName":"mem:YQ==","length":2}`,
		"a wrong digest":          `{"attachmentName":"mem:YQ==","digest":"sha256-00"}`,
		"an attachment that left": `{"attachmentName":"couch:gone"}`,
	} {
		s.PutAction(action(`{"kind":"python:3","code":`+code+`}`), nil)
		if a, err := client.Action(t.Context(), id); err == nil {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

func TestTruthy(t *testing.T) {
	a := Action{Annotations: []Annotation{{"yes", json.RawMessage(`"x"`)},
		{"no", json.RawMessage(`false`)}, {"empty", json.RawMessage(`""`)}, {"one", json.RawMessage(`1`)}}}
	if !a.Truthy("yes", false) || !a.Truthy("one", false) || a.Truthy("no", true) ||
		a.Truthy("empty", true) || !a.Truthy("absent", true) || a.Truthy("absent", false) {
		t.Error("wrong")
	}
}

func record(logs ...string) message.Record {
	start := time.UnixMilli(1700000000000)
	return message.NewRecord(&activation.Record{
		ID: "0123456789abcdef0123456789abcdef", Namespace: "guest", Name: "hello", Version: "0.0.3",
		Subject: "guest", Path: id, Kind: "python:3",
		Start: start, End: start.Add(time.Millisecond), Logs: logs,
		Response: activation.Response{Result: json.RawMessage(`{}`)},
	}, &message.Activation{})
}

func TestAnActivationIsKeptOnce(t *testing.T) {
	s, client := open(t)
	r := record("a line")
	if err := client.PutActivation(t.Context(), r, time.Now()); err != nil {
		t.Fatal(err)
	}
	doc := s.Activation("guest", r.ActivationID)
	if doc["entityType"] != "activation" || doc["response"].(map[string]any)["statusCode"] != 0.0 ||
		doc["logs"].([]any)[0] != "a line" {
		t.Errorf("%v", doc)
	}
	if err := client.PutActivation(t.Context(), r, time.Now()); !errors.Is(err, ErrConflict) {
		t.Errorf("a second record of that id: %v", err)
	}
}

func TestAWriteThatFailedIsTriedAgain(t *testing.T) {
	s, client := open(t)
	s.FailWrites(500, 503)
	if err := client.PutActivation(t.Context(), record(), time.Now()); err != nil ||
		s.Activations() != 1 {
		t.Errorf("%v, %d kept", err, s.Activations())
	}
	s.FailWrites(500, 500, 500, 500, 500)
	if err := client.PutActivation(t.Context(), record(), time.Now()); err == nil ||
		!strings.Contains(err.Error(), "500") {
		t.Errorf("after four tries: %v", err)
	}
	s.FailWrites(403)
	if err := client.PutActivation(t.Context(), record(), time.Now()); err == nil ||
		!strings.Contains(err.Error(), "403") {
		t.Errorf("refused: %v", err)
	}
}

func TestAWriteWhoseAnswerWasLostIsNoConflict(t *testing.T) {
	s, client := open(t)
	s.SwallowAnswers(1)
	if err := client.PutActivation(t.Context(), record(), time.Now()); err != nil ||
		s.Activations() != 1 {
		t.Errorf("%v, %d kept", err, s.Activations())
	}
}

func TestARecordThatIsTooLargeLosesItsLogsOnly(t *testing.T) {
	s, client := open(t)
	s.MaxBody = 2000
	r := record(strings.Repeat("long ", 1000))
	if err := client.PutActivation(t.Context(), r, time.Now()); err != nil {
		t.Fatal(err)
	}
	if logs := s.Activation("guest", r.ActivationID)["logs"].([]any); len(logs) != 1 ||
		!strings.Contains(logs[0].(string), "not kept") {
		t.Errorf("%v", logs)
	}
}

func TestBlocked(t *testing.T) {
	s, client := open(t)
	s.Block("bad", "worse")
	blocked, err := client.Blocked(t.Context())
	if err != nil || len(blocked) != 2 || !blocked["bad"] || blocked["guest"] {
		t.Errorf("%v %v", blocked, err)
	}
}

func TestAWrongPasswordIsFoundAtOnce(t *testing.T) {
	s, client := open(t)
	if err := client.Check(t.Context()); err != nil {
		t.Error(err)
	}
	wrong := New(Config{URL: s.URL, User: couchtest.User, Password: "hidden"})
	defer wrong.Close()
	if err := wrong.Check(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "Name or password is incorrect") ||
		strings.Contains(err.Error(), "hidden") {
		t.Error(err)
	}
}

func TestADatabaseThatDoesNotAnswerDoesNotHoldACaller(t *testing.T) {
	_, client := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Action(ctx, id); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
