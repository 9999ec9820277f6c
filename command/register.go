package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
)

// A registerClient asks the register behind a socket.
type registerClient struct{ http http.Client }

func newRegisterClient(socket string) *registerClient {
	return &registerClient{http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

func (r *registerClient) ask(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://invoker"+
		path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var failure struct {
			Error string `json:"error"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&failure); err != nil {
			return fmt.Errorf("the invoker answered HTTP %d: %w", resp.StatusCode, err)
		}
		return &refusedByRegister{resp.StatusCode, failure.Error}
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

type refusedByRegister struct {
	status int
	why    string
}

func (r *refusedByRegister) Error() string { return r.why }
