package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Remote gathers the page that another process serves on a Unix socket. An empty path gathers
// nothing.
func Remote(socket string) []prometheus.Gatherer {
	if socket == "" {
		return nil
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: dial}}
	return []prometheus.Gatherer{prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := fetch(client)
		if err != nil {
			err = fmt.Errorf("metrics at %s: %w", socket, err)
		}
		return families, err
	})}
}

// maxPage bounds a page: a metric has hundreds of series at most, of some hundred bytes each.
const maxPage = 64 << 20

func fetch(client *http.Client) (families []*dto.MetricFamily, err error) {
	req, err := http.NewRequest(http.MethodGet, "http://agent/metrics", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim))) // which loses nothing
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	page := expfmt.NewDecoder(io.LimitReader(resp.Body, maxPage),
		expfmt.ResponseFormat(resp.Header))
	for {
		family := &dto.MetricFamily{}
		switch err := page.Decode(family); {
		case errors.Is(err, io.EOF):
			return families, nil
		case err != nil:
			return nil, err
		}
		families = append(families, family)
	}
}
