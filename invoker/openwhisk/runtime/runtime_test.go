package runtime

import (
	"testing"
	"time"
)

var call = Call{
	Place:      Place{Namespace: "guest", Action: "/owner/pkg/hello", Version: "0.0.2"},
	Activation: "cafe", Transaction: "t\"1",
	Deadline: time.UnixMilli(1_800_000_000_000), Key: "uuid:key",
}

func TestInit(t *testing.T) {
	fixed := map[string]string{"a": "b\xff", "__OW_NAMESPACE": "mine", "__OW_DEADLINE": "never"}
	place := Call{Place: call.Place}
	for want, got := range map[string][]byte{
		`{"value":{"name":"hello","main":"main","binary":false,"code":"x => \"x\"","env":{` +
			`"__OW_ACTION_NAME":"/owner/pkg/hello","__OW_ACTION_VERSION":"0.0.2",` +
			`"__OW_ACTIVATION_ID":"cafe",` +
			`"__OW_API_KEY":"uuid:key","__OW_DEADLINE":"1800000000000","__OW_NAMESPACE":"guest",` +
			`"__OW_TRANSACTION_ID":"t\"1","a":"b` + "\ufffd" + `"}}}`: Init(
			Program[string]{Name: "hello", Code: `x => "x"`}, call, fixed),
		`{"value":{"name":"hello","main":"go","binary":true,"code":"AA==","env":{` +
			`"__OW_ACTION_NAME":"/owner/pkg/hello","__OW_ACTION_VERSION":"0.0.2","__OW_NAMESPACE":"guest"` +
			`}}}`: Init(Program[[]byte]{"hello", "go", true, []byte("AA==")}, place, nil),
	} {
		if string(got) != want {
			t.Errorf("got\n%s, want\n%s", got, want)
		}
	}
	if len(fixed) != 3 || fixed["__OW_NAMESPACE"] != "mine" {
		t.Errorf("the action's environment became %v", fixed)
	}
}

func TestBody(t *testing.T) {
	keyless := call
	keyless.Key = ""
	about := `,"namespace":"guest","action_name":"/owner/pkg/hello","action_version":"0.0.2",` +
		`"activation_id":"cafe","transaction_id":"t\"1","deadline":"1800000000000"`
	for want, got := range map[string][]byte{
		`{"value":{"n" : 1}` + about + `,"api_key":"uuid:key"}`: Body(call, []byte(`{"n" : 1}`)),
		`{"value":[]` + about + `}`:                             Body(keyless, []byte(`[]`)),
	} {
		if string(got) != want {
			t.Errorf("got\n%s, want\n%s", got, want)
		}
	}
}
