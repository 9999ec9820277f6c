package couch

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
)

// An Action is an action that can be run, with its code.
type Action struct {
	ID          string // of the document
	Revision    string // as it was found, which may be newer than the one that was asked for
	Namespace   string // with the package
	Name        string
	Version     string
	Exec        Exec
	Annotations []Annotation
	Limits      activation.Limits
}

// An Exec is an action's code: text, or base64 where it is binary.
type Exec struct {
	Kind   string
	Image  string
	Main   string
	Code   string
	Binary bool
}

// An Annotation of an action.
type Annotation struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// Truthy reports whether the annotation is there and means yes. If it is not there, it returns
// absent.
func (a *Action) Truthy(key string, absent bool) bool {
	for _, annotation := range a.Annotations {
		if annotation.Key == key {
			switch value := string(annotation.Value); value {
			case "false", "null", "0", `""`, "":
				return false
			default:
				return true
			}
		}
	}
	return absent
}

// Annotation returns the value of a key, or nil.
func (a *Action) Annotation(key string) json.RawMessage {
	for _, annotation := range a.Annotations {
		if annotation.Key == key {
			return annotation.Value
		}
	}
	return nil
}

// A document is an action as the database has it.
type document struct {
	ID          string            `json:"_id"`
	Revision    string            `json:"_rev"`
	EntityType  string            `json:"entityType"`
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	Version     string            `json:"version"`
	Annotations []Annotation      `json:"annotations"`
	Limits      activation.Limits `json:"limits"`
	Exec        struct {
		Kind   string          `json:"kind"`
		Image  string          `json:"image"`
		Main   string          `json:"main"`
		Code   json.RawMessage `json:"code"`
		Jar    json.RawMessage `json:"jar"` // where old Java actions have their code
		Binary *bool           `json:"binary"`
	} `json:"exec"`
}

// ErrMismatch is returned for a document that is not an action that can be run.
type ErrMismatch struct{ Why string }

func (e *ErrMismatch) Error() string { return "not an action that can be run: " + e.Why }

// Action reads the newest revision of an action. An activation that asks for an older revision runs
// in the newest, because the older one may have been compacted away. OpenWhisk's own invoker does
// the same.
func (c *Client) Action(ctx context.Context, id string) (*Action, error) {
	body, err := c.do(ctx, http.MethodGet, nil, nil, whisks, id)
	if err != nil {
		return nil, err
	}
	doc := document{Limits: activation.Limits{TimeoutMs: 60_000, MemoryMB: 256, LogsMB: 10,
		Concurrency: 1}}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, &ErrMismatch{err.Error()}
	}
	switch {
	case doc.EntityType != "" && doc.EntityType != "action":
		return nil, &ErrMismatch{fmt.Sprintf("%s is of type %s", id, doc.EntityType)}
	case doc.Name == "" || doc.Namespace == "" || doc.Revision == "":
		return nil, &ErrMismatch{fmt.Sprintf("%s has no name, namespace or revision", id)}
	case doc.Exec.Kind == "" || doc.Exec.Kind == "sequence":
		return nil, &ErrMismatch{fmt.Sprintf("%s is of kind %q", id, doc.Exec.Kind)}
	}
	a := &Action{
		ID: id, Revision: doc.Revision, Namespace: doc.Namespace, Name: doc.Name,
		Version:     doc.Version,
		Annotations: doc.Annotations, Limits: doc.Limits,
		Exec: Exec{Kind: doc.Exec.Kind, Image: doc.Exec.Image, Main: doc.Exec.Main},
	}
	code := doc.Exec.Code
	if code == nil {
		code = doc.Exec.Jar
	}
	switch {
	case len(code) == 0 || string(code) == "null":
	case code[0] == '"':
		if err := json.Unmarshal(code, &a.Exec.Code); err != nil {
			return nil, &ErrMismatch{err.Error()}
		}
		a.Exec.Binary = isBase64(a.Exec.Code)
	default:
		attached, err := c.attached(ctx, doc, code)
		if err != nil {
			return nil, err
		}
		if a.Exec.Binary = doc.Exec.Binary != nil && *doc.Exec.Binary; a.Exec.Binary {
			a.Exec.Code = base64.StdEncoding.EncodeToString(attached)
		} else {
			a.Exec.Code = string(attached)
		}
	}
	return a, nil
}

// attached returns the content that a reference in the document stands for. The name of an
// attachment is a URI: mem:CONTENT for a small one; couch:NAME, or in old documents a bare NAME,
// for one that CouchDB has.
func (c *Client) attached(ctx context.Context, doc document,
	reference json.RawMessage) (content []byte, err error) {
	var at struct {
		Name   string `json:"attachmentName"`
		Length *int   `json:"length"`
		Digest string `json:"digest"`
	}
	if err := json.Unmarshal(reference, &at); err != nil || at.Name == "" {
		return nil, &ErrMismatch{fmt.Sprintf("%s: its code is neither text nor an attachment",
			doc.ID)}
	}
	scheme, name, found := strings.Cut(at.Name, ":")
	if !found {
		scheme, name = "couch", at.Name
	}
	switch scheme {
	case "mem":
		if content, err = base64.URLEncoding.DecodeString(name); err != nil {
			return nil, &ErrMismatch{fmt.Sprintf("%s: its inlined code: %v", doc.ID, err)}
		}
	case "couch":
		if content, err = c.do(ctx, http.MethodGet, url.Values{"rev": {doc.Revision}}, nil, whisks,
			doc.ID, name); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf(
			"the code of %s is kept in a store %q; this invoker reads CouchDB's attachments only",
			doc.ID, scheme)
	}
	if at.Length != nil && *at.Length != len(content) {
		return nil, fmt.Errorf("the code of %s has %d bytes; its document says %d", doc.ID,
			len(content), *at.Length)
	}
	sum := sha256.Sum256(content)
	if want, is := strings.CutPrefix(at.Digest, "sha256-"); is &&
		want != hex.EncodeToString(sum[:]) {
		return nil, fmt.Errorf("the code of %s is not what its document's digest says", doc.ID)
	}
	return content, nil
}

// isBase64 reports whether code that is kept as text is an archive and not source, by OpenWhisk's
// rule.
func isBase64(code string) bool {
	code = strings.TrimSpace(code)
	if code == "" || len(code)%4 != 0 {
		return false
	}
	_, err := base64.StdEncoding.DecodeString(code)
	return err == nil
}
