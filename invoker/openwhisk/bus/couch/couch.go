// Package couch reads actions from, and writes activations to, the CouchDB of an OpenWhisk cluster.
//
// Documents are OpenWhisk's: an entity's id is namespace/[package/]name, an activation's is
// namespace/activationId. Code that is not a string in its document is an attachment.
package couch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"time"
)

// Config names the databases and the user.
type Config struct {
	// The last part of its path is put before the names of the databases:
	// http://couch:5984/whisk_local_
	URL      *url.URL
	User     string // empty: nobody is asked
	Password string
}

// A Client is safe for use by many goroutines.
type Client struct {
	cfg    Config
	prefix string
	http   *http.Client
	pause  time.Duration // before a failed write is tried again; doubles each time
}

// The databases, and the bounds of a call to them.
const (
	whisks      = "whisks"
	activations = "activations"
	subjects    = "subjects"

	timeout = 30 * time.Second
	maxBody = 80 << 20 // a document or an attachment: 48 MB of code as base64, and its parameters
)

// ErrNotFound is the answer to a question for a document that is not there, or not any more.
var ErrNotFound = errors.New("not found")

// ErrConflict is the answer to a write of a document that is there already.
var ErrConflict = errors.New("there is another document of that id")

// New returns a client; it asks nothing yet.
func New(cfg Config) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 32 // activations are written side by side
	base, prefix := path.Split(cfg.URL.Path)
	at := *cfg.URL
	at.Path, at.User = base, nil
	if at.Path == "" {
		at.Path = "/"
	}
	cfg.URL = &at
	return &Client{cfg: cfg, prefix: prefix,
		http: &http.Client{Transport: transport, Timeout: timeout}, pause: 100 * time.Millisecond}
}

// Close lets go of the connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Check asks each database whether it is there and may be read.
func (c *Client) Check(ctx context.Context) error {
	for _, db := range []string{whisks, activations, subjects} {
		if _, err := c.do(ctx, http.MethodGet, nil, nil, db); err != nil {
			return err
		}
	}
	return nil
}

// Blocked returns the namespaces whose activations must not run.
func (c *Client) Blocked(ctx context.Context) (map[string]bool, error) {
	body, err := c.do(ctx, http.MethodGet,
		url.Values{"reduce": {"false"}, "stale": {"update_after"}}, nil,
		subjects, "_design", "namespaceThrottlings", "_view", "blockedNamespaces")
	if err != nil {
		return nil, err
	}
	var view struct {
		Rows []struct {
			Key string `json:"key"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(body, &view); err != nil {
		return nil, fmt.Errorf("couchdb: the view of blocked namespaces: %w", err)
	}
	blocked := map[string]bool{}
	for _, row := range view.Rows {
		blocked[row.Key] = true
	}
	return blocked, nil
}

// A refusal is an answer other than success.
type refusal struct {
	status int
	what   string
}

func (r *refusal) Error() string { return r.what }
func (r *refusal) Is(target error) bool {
	return r.status == http.StatusNotFound && target == ErrNotFound ||
		r.status == http.StatusConflict && target == ErrConflict
}

// do sends one request; the first of segments is the database.
func (c *Client) do(ctx context.Context, method string, query url.Values, body []byte,
	segments ...string) ([]byte, error) {
	at := c.cfg.URL.JoinPath(url.PathEscape(c.prefix + segments[0]))
	for _, segment := range segments[1:] {
		at = at.JoinPath(url.PathEscape(segment))
	}
	at.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, at.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.cfg.User != "" {
		request.SetBasicAuth(c.cfg.User, c.cfg.Password)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("couchdb: %w", err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("couchdb: %s %s: %w", method, at.Redacted(), err)
	case len(content) > maxBody:
		return nil, fmt.Errorf("couchdb: %s %s: the answer has more than %d bytes", method,
			at.Redacted(), maxBody)
	case response.StatusCode >= 300:
		return nil, &refusal{response.StatusCode, fmt.Sprintf("couchdb: %s %s: %s %s", method,
			at.Redacted(), response.Status, reason(content))}
	}
	return content, nil
}

// reason is CouchDB's own word for what went wrong.
func reason(body []byte) string {
	var answer struct{ Error, Reason string }
	if json.Unmarshal(body, &answer) != nil || answer.Error == "" {
		return ""
	}
	return answer.Error + ": " + answer.Reason
}
