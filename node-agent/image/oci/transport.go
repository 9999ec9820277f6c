package oci

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/publicsuffix"
)

// maxAnswer bounds what is read of an answer: a manifest, a token, an error. Only of a requested
// blob more is read, as much as the manifest says.
const maxAnswer = 4 << 20

// An unfinished answer must bring slowest bytes in a window of time: a registry that sends too
// slowly would block a place that others wait for.
const (
	slowest = 64 << 10
	window  = 30 * time.Second
)

// A road leads to one registry, and to the hosts where that registry sends us for tokens and blobs.
// Every request uses it, so redirects and token realms obey the same rules as the first request.
type road struct {
	*Registries
	to      string // the registry
	api     string // path of its API, /v2 unless told otherwise
	secrets bool   // credentials may be sent over it
	fetched func(int64)
	window  time.Duration
	http    *http.Transport
	own     *http.Transport // to the host itself, with its certificates; may be nil
	header  http.Header     // that the host gets
}

func newRoad(r *Registries, to string, secrets bool, fetched func(int64)) *road {
	w := &road{Registries: r, to: to, api: usualAPI, secrets: secrets, fetched: fetched,
		window: window}
	w.http = &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            w.dial,
		DisableCompression:     true, // an answer arrives with the bytes that were hashed
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  time.Minute,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	}
	return w
}

const usualAPI = "/v2"

// its sets what is for the host alone at the beginning of the road.
func (w *road) its(api string, config *tls.Config, header http.Header) {
	w.api, w.header = api, header
	if config != nil {
		w.own = w.http.Clone()
		w.own.TLSClientConfig = config
	}
}

func (w *road) close() {
	w.http.CloseIdleConnections()
	if w.own != nil {
		w.own.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (w *road) RoundTrip(r *http.Request) (*http.Response, error) {
	host := r.URL.Host
	told := w.told[dialled(host, r.URL.Scheme)]
	switch {
	case told == "http" && r.URL.Scheme == "https": // the scheme that the library tries first
		return nil, fmt.Errorf("%s is spoken to without TLS, as it was told", host)
	case told != "" && told != r.URL.Scheme, told == "" && r.URL.Scheme != "https":
		return nil, refuse(NotAllowed, "%s: not by %s unless --image-registries has %s://%s",
			host, r.URL.Scheme, r.URL.Scheme, host)
	case w.carries(r) && !sameSite(host, w.to):
		return nil, refuse(NotAllowed, "%s asks for credentials to be sent to %s", w.to, host)
	}
	if ip, err := netip.ParseAddr(r.URL.Hostname()); err == nil && told == "" && !public(ip) {
		return nil, private(host)
	}
	ctx, cancel := context.WithCancel(r.Context())
	r, by := r.Clone(ctx), w.http
	first := host == w.to && r.URL.Path == usualAPI+"/" // asks whether a token is needed
	if host == w.to {
		maps.Copy(r.Header, w.header)
		if first {
			r.URL.Path = w.api + "/"
		}
		if w.own != nil {
			by = w.own
		}
	}
	resp, err := by.RoundTrip(r)
	if err != nil {
		cancel()
		return nil, err
	}
	if first && w.api != usualAPI && resp.StatusCode == http.StatusNotFound {
		resp.StatusCode = http.StatusOK // it has images, and nothing else
	}
	resp.Body = newAnswer(resp.Body, w.fetched, w.window, cancel)
	return resp, nil
}

// carries reports whether a request may contain a namespace's credentials.
func (w *road) carries(r *http.Request) bool {
	return w.secrets && (r.Header.Get("Authorization") != "" || r.Method != http.MethodGet)
}

// sameSite reports whether two hosts belong to one owner, as auth.docker.io and index.docker.io do.
func sameSite(a, b string) bool {
	if a == b {
		return true
	}
	siteA, errA := publicsuffix.EffectiveTLDPlusOne(hostname(a))
	siteB, errB := publicsuffix.EffectiveTLDPlusOne(hostname(b))
	return errA == nil && errB == nil && siteA == siteB
}

func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// dial checks the address after its name was resolved, so no name leads to a private address.
func (w *road) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 30 * time.Second}
	if w.told[address] == "" && !isProxy(address) {
		d.Control = func(_, resolved string, _ syscall.RawConn) error {
			if to, err := netip.ParseAddrPort(resolved); err != nil || !public(to.Addr()) {
				return private(fmt.Sprintf("%s (%s)", address, resolved))
			}
			return nil
		}
	}
	return d.DialContext(ctx, network, address)
}

func private(host string) error {
	return refuse(NotAllowed,
		"%s is not a public address; one that is meant is told with its scheme "+
			"in --image-registries, as https://HOST:PORT or http://HOST:PORT", host)
}

// special lists non-public ranges that the methods of netip.Addr do not recognise.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), // benchmarks
	netip.MustParsePrefix("240.0.0.0/4"),
	// IPv4 behind NAT64, since the address inside is not checked
	netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("2002::/16"), // 6to4
	netip.MustParsePrefix("2001::/32"), // Teredo
	netip.MustParsePrefix("fec0::/10"),
	netip.MustParsePrefix("::/96"),
}

func public(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	for _, range_ := range special {
		if range_.Contains(ip) {
			return false
		}
	}
	return ip.IsGlobalUnicast() && !ip.IsPrivate()
}

var probeURL = &url.URL{Scheme: "https", Host: "registry.example.org"}

// isProxy reports whether the environment names the address as the proxy for HTTPS.
func isProxy(address string) bool {
	probe := &http.Request{Method: http.MethodGet, URL: probeURL}
	proxy, err := http.ProxyFromEnvironment(probe)
	return err == nil && proxy != nil && dialled(proxy.Host, proxy.Scheme) == address
}

// An answer is a body of bounded length that must keep a minimum speed.
type answer struct {
	io.ReadCloser
	left    int64
	fetched func(int64)
	recent  atomic.Int64 // bytes in this window
	slow    atomic.Bool
	timer   *time.Timer
	cancel  func()
}

var errLong = errors.New("the answer is longer than it may be")

func newAnswer(
	body io.ReadCloser, fetched func(int64), window time.Duration, cancel func(),
) *answer {
	a := &answer{ReadCloser: body, left: maxAnswer, fetched: fetched, cancel: cancel}
	a.timer = time.AfterFunc(math.MaxInt64, func() {
		if a.recent.Swap(0) < slowest {
			a.slow.Store(true)
			cancel()
			return
		}
		a.timer.Reset(window)
	})
	a.timer.Reset(window)
	return a
}

// Close implements io.Closer.
func (a *answer) Close() error {
	a.timer.Stop()
	defer a.cancel()
	return a.ReadCloser.Close()
}

// lift allows n bytes to be read.
func (a *answer) lift(n int64) { a.left = n }

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.read(p)
	if err != nil && err != io.EOF && a.slow.Load() {
		err = refuse(Late, "the registry sent less than %d KB in %s", slowest>>10, window)
	}
	return n, err
}

func (a *answer) read(p []byte) (int, error) {
	if a.left <= 0 {
		var one [1]byte // the body may just have ended
		if n, err := a.ReadCloser.Read(one[:]); n == 0 {
			return 0, err
		}
		return 0, because{TooLarge, errLong}
	}
	n, err := a.ReadCloser.Read(p[:min(int64(len(p)), a.left)])
	a.left -= int64(n)
	a.recent.Add(int64(n))
	a.fetched(int64(n))
	return n, err
}
