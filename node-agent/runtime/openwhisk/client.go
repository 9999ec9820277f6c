package openwhisk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

const (
	// The longest answer, in bytes. It is above what OpenWhisk passes on (1 MiB), so that the
	// caller can tell "too long" from "cut off".
	maxAnswer = 8 << 20

	// A connection is kept this long for the next request: for less time than a runtime keeps it
	// (Node.js: 5 s), since a runtime may close it just when a request is on its way. Such a
	// request could not be sent again: the runtime may have seen it.
	idle = 3 * time.Second
)

// A client is a Direct that posts to one runtime. It keeps its connection between requests.
type client struct{ http http.Client }

// newClient returns the client of the runtime that dial reaches.
func newClient(dial func(ctx context.Context) (net.Conn, error)) *client {
	return &client{http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := dial(ctx)
				if err != nil && ctx.Err() == nil {
					err = fmt.Errorf("%w: %w", sandbox.ErrUnreached, err)
				}
				return conn, err
			},
			IdleConnTimeout:        idle,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}}
}

// Post sends body to path and returns the whole answer. It gives up at until, unless that is zero.
func (c *client) Post(
	ctx context.Context, path string, body []byte, until time.Time,
) (int, []byte, error) {
	if !until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://runtime"+path,
		bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("runtime %s: %w", path, because(ctx, err))
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusOK {
		return 0, nil, fmt.Errorf("runtime %s: it answers with status %s", path, response.Status)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("runtime %s: answer broke off after %d bytes: %w",
			path, len(answer), because(ctx, err))
	case len(answer) > maxAnswer:
		return 0, nil, fmt.Errorf("runtime %s: answer is longer than %d bytes", path, maxAnswer)
	}
	return response.StatusCode, answer, nil
}

// because prefers the reason why ctx ended to the error that its end brought about.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if inner := errors.Unwrap(err); inner != nil { // without the URL, which is not a real one
		return inner
	}
	return err
}
