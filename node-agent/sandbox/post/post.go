// Package post sends activations to a runtime that speaks HTTP on whatever the driver can dial: a guest's vsock port or a unix socket.
//
// The runtime is a stranger's code: how much it may answer is bounded, and what it says is passed on, not understood.
package post

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

// maxAnswer is above what any platform passes on (OpenWhisk: 1 MiB), so that the caller can tell "too long" from "cut off".
const maxAnswer = 8 << 20

// idle is how long a connection is kept for the next request: less than a runtime keeps it (Node.js:
// 5 s), which may close it just when a request is under way. That request could not be sent again,
// since the runtime may have seen it.
const idle = 3 * time.Second

// A Client is one sandbox's runtime.
type Client struct{ http http.Client }

// To returns the client of the runtime that dial reaches. Its connection is kept between requests.
func To(dial func(ctx context.Context) (net.Conn, error)) *Client {
	return &Client{http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := dial(ctx)
				if err != nil {
					err = fmt.Errorf("%w: %w", sandbox.ErrUnreached, err)
				}
				return conn, err
			},
			IdleConnTimeout:        idle,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Post sends body to path and returns the whole answer.
func (c *Client) Post(ctx context.Context, path string, body []byte) (status int, answer []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://runtime"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("runtime %s: %w", path, cause(ctx, err))
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("runtime %s: answer broke off after %d bytes: %w", path, len(answer), cause(ctx, err))
	case len(answer) > maxAnswer:
		return 0, nil, fmt.Errorf("runtime %s: answer is longer than %d bytes", path, maxAnswer)
	}
	return response.StatusCode, answer, nil
}

// cause prefers why ctx ended over the error that its end brought about.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if inner := errors.Unwrap(err); inner != nil { // without the URL, which is not a real one
		return inner
	}
	return err
}

// Close drops the connections that are kept.
func (c *Client) Close() { c.http.CloseIdleConnections() }
