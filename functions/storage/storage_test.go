package storage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fastiov/fastiov/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// serve runs a server over a directory inside another one, where a test finds what escaped.
func serve(t *testing.T, max int64) (url, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "storage")
	s, err := Open(dir, max)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		server.Close()
		s.Close()
	})
	return server.URL, dir
}

func ask(
	t *testing.T, method, url string, body io.Reader, header ...string,
) (status int, content []byte, reply http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(header); n += 2 {
		req.Header.Set(header[n], header[n+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	content, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, content, resp.Header
}

func files(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			all = append(all, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestWhatIsPutCanBeGot(t *testing.T) {
	url, dir := serve(t, MaxObject)
	if status, _, _ := ask(t, "GET", url+"/b/a/b.txt", nil); status != 404 {
		t.Errorf("before it is there: %d", status)
	}
	status, _, put := ask(t, "PUT", url+"/b/a/b.txt", strings.NewReader("0123456789"),
		"Authorization", "AWS4-HMAC-SHA256 whatever")
	if status != 200 {
		t.Fatalf("PUT: %d", status)
	}
	status, content, got := ask(t, "GET", url+"/b/a/b.txt?x-id=GetObject&X-Amz-Date=1", nil)
	if status != 200 || string(content) != "0123456789" || got.Get("ETag") == "" ||
		got.Get("ETag") != put.Get("ETag") {
		t.Errorf("GET: %d %q, ETag %s, at PUT %s",
			status, content, got.Get("ETag"), put.Get("ETag"))
	}
	if status, content, _ = ask(t, "GET", url+"/b/a/b.txt", nil,
		"Range", "bytes=2-4"); status != 206 || string(content) != "234" {
		t.Errorf("a range: %d %q", status, content)
	}
	if status, _, got = ask(t, "HEAD", url+"/b/a/b.txt", nil); status != 200 ||
		got.Get("Content-Length") != "10" {
		t.Errorf("HEAD: %d, %s bytes", status, got.Get("Content-Length"))
	}
	// of unknown length
	if status, _, _ = ask(t, "PUT", url+"/b/a/b.txt",
		io.MultiReader(strings.NewReader("chunked"))); status != 200 {
		t.Errorf("a body in chunks: %d", status)
	}
	if _, content, got = ask(t, "GET", url+"/b/a/b.txt", nil); string(content) != "chunked" ||
		got.Get("ETag") == put.Get("ETag") {
		t.Errorf("after another PUT: %q, ETag the same: %v",
			content, got.Get("ETag") == put.Get("ETag"))
	}
	for range 2 { // the second time there is nothing to delete
		if status, _, _ = ask(t, "DELETE", url+"/b/a/b.txt", nil); status != 204 {
			t.Errorf("DELETE: %d", status)
		}
	}
	if left := files(t, dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRefusals(t *testing.T) {
	base, dir := serve(t, 16)
	ask(t, "PUT", base+"/b/file", strings.NewReader("x"))
	ask(t, "PUT", base+"/b/dir/file", strings.NewReader("x"))
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code                     string
		header                   []string
	}{
		{"too large", "PUT", "/b/large", "12345678901234567", 413, "EntityTooLarge", nil},
		{"a bucket", "GET", "/b", "", 400, "InvalidURI", nil},
		{"a bucket's list", "GET", "/b/?list-type=2", "", 501, "NotImplemented", nil},
		{"a multipart upload", "PUT", "/b/k?partNumber=1&uploadId=x", "x", 501, "NotImplemented", nil},
		{"signed chunks", "PUT", "/b/k", "x", 501, "NotImplemented", []string{"X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}},
		{"signed chunks by encoding", "PUT", "/b/k", "x", 501, "NotImplemented", []string{"Content-Encoding", "aws-chunked"}},
		{"a copy", "PUT", "/b/k", "", 501, "NotImplemented", []string{"X-Amz-Copy-Source", "/b/file"}},
		{"another method", "POST", "/b/k", "x", 405, "MethodNotAllowed", nil},
		{"a long key", "PUT", "/b/" + strings.Repeat("k/", 600), "x", 400, "KeyTooLongError", nil},
		{"a long element", "PUT", "/b/" + strings.Repeat("k", 256), "x", 400, "InvalidURI", nil},
		{"below an object", "PUT", "/b/file/below", "x", 409, "InvalidRequest", nil},
		{"below an object, read", "GET", "/b/file/below", "", 404, "NoSuchKey", nil},
		{"over a beginning", "PUT", "/b/dir", "x", 409, "InvalidRequest", nil},
		{"a beginning, read", "GET", "/b/dir", "", 404, "NoSuchKey", nil},
		{"no key", "PUT", "/b/", "x", 400, "InvalidURI", nil},
		{"an empty element", "PUT", "/b//k", "x", 400, "InvalidURI", nil},
		{"a hidden one", "PUT", "/b/.part-x", "x", 400, "InvalidURI", nil},
		{"no text", "PUT", "/b/%ff", "x", 400, "InvalidURI", nil},
		{"a zero", "PUT", "/b/a%00b", "x", 400, "InvalidURI", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, content, _ := ask(t, c.method, base+c.path,
				strings.NewReader(c.body), c.header...)
			if status != c.status || !strings.Contains(string(content), "<Code>"+c.code+"</Code>") {
				t.Errorf("%d %s; want %d %s", status, content, c.status, c.code)
			}
		})
	}
	ask(t, "DELETE", base+"/b/dir", nil) // a prefix of a key is not an object
	if got := fmt.Sprint(files(t, dir)); got != "[b/dir/file b/file]" {
		t.Errorf("files are now %s", got)
	}
}

// The path is sent unchanged, since clients normalise theirs.
func TestNoPathLeadsOut(t *testing.T) {
	base, dir := serve(t, MaxObject)
	secret := filepath.Join(filepath.Dir(dir), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"b/link": secret, "b/up": "../.."} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/../secret", "/b/../../secret", "/b/%2e%2e/%2e%2e/secret",
		"/b/..%2f..%2fsecret", "//secret", "/b/./../../secret",
		"/b/link", "/b/up/secret", "/b/up/storage/../secret", `/b\..\..\secret`} {
		for _, method := range []string{"GET", "PUT"} {
			t.Run(method+" "+path, func(t *testing.T) {
				answer := raw(t, base,
					method+" "+path+
						" HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nConnection: close\r\n\r\nevil")
				if bytes.Contains(answer, []byte("secret\n")) ||
					bytes.HasSuffix(answer, []byte("secret")) {
					t.Errorf("it answered %s", answer)
				}
				if content, err := os.ReadFile(secret); err != nil || string(content) != "secret" {
					t.Fatalf("the file outside is now %q, %v", content, err)
				}
			})
		}
	}
	if outside, _ := os.ReadDir(filepath.Dir(dir)); len(outside) != 2 {
		t.Errorf("beside the directory are now %v", outside)
	}
}

func raw(t *testing.T, base, request string) []byte {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(bufio.NewReader(conn))
	if err != nil && !errors.Is(err, net.ErrClosed) && len(answer) == 0 {
		t.Fatal(err)
	}
	return answer
}

// Readers beside writers see one version or another, and an interrupted PUT leaves the version
// before it.
func TestAnObjectIsWhole(t *testing.T) {
	base, dir := serve(t, MaxObject)
	const size = 1 << 20
	version := func(n int) []byte { return bytes.Repeat([]byte{byte('a' + n)}, size) }
	ask(t, "PUT", base+"/b/k", bytes.NewReader(version(0)))
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() { ask(t, "PUT", base+"/b/k", bytes.NewReader(version(n))) })
		all.Go(func() {
			if _, got, _ := ask(t, "GET", base+"/b/k", nil); len(got) != size ||
				bytes.Count(got, got[:1]) != size {
				t.Errorf("a reader saw %d bytes, %d of them equal",
					len(got), bytes.Count(got, got[:1]))
			}
		})
	}
	all.Wait()

	_, before, _ := ask(t, "GET", base+"/b/k", nil)
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, "PUT", base+"/b/k", reader)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	if _, err := writer.Write(version(9)); err != nil {
		t.Fatal(err)
	}
	cancel()
	writer.CloseWithError(context.Canceled) // the client may wait for its body before it gives up
	<-answered
	if _, after, _ := ask(t, "GET", base+"/b/k", nil); !bytes.Equal(before, after) {
		t.Error("a PUT that broke off changed the object")
	}
	// The server may notice late that the client has gone. At the latest, the next Open of the
	// directory removes what it had stored.
	for late := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		last := time.Now().After(late)
		again, err := Open(dir, MaxObject)
		if err != nil {
			t.Fatal(err)
		}
		again.Close()
		left := files(t, dir)
		if slices.Equal(left, []string{"b/k"}) {
			break
		}
		if last { // a handler that begins late may leave something for a while
			t.Fatalf("left behind: %q", left)
		}
	}
}

func TestADirectoryThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, 1); err == nil || !strings.Contains(err.Error(), "storage: ") {
		t.Error(err)
	}
}

// Every path is refused or names a file below the directory.
func FuzzKey(f *testing.F) {
	for _, path := range []string{"/b/k", "/../x", "/b/%2e%2e/x", "/b//", "/b/\x00",
		"/b/k?uploads"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		key, err := keyOf(&http.Request{URL: u})
		if err == nil && (!filepath.IsLocal(key) || !strings.Contains(key, "/") ||
			filepath.Clean(key) != key) {
			t.Errorf("%q names %q", path, key)
		}
	})
}

// BenchmarkObject writes and reads an object of 1 MiB over loopback.
func BenchmarkObject(b *testing.B) {
	s, err := Open(b.TempDir(), MaxObject)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	server := httptest.NewServer(s)
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, method := range []string{http.MethodPut, http.MethodGet} {
		b.Run(method, func(b *testing.B) {
			b.SetBytes(int64(len(content)))
			for b.Loop() {
				req, err := http.NewRequestWithContext(b.Context(), method, server.URL+"/b/k",
					bytes.NewReader(content))
				if err != nil {
					b.Fatal(err)
				}
				if method == http.MethodGet {
					req.Body, req.ContentLength = nil, 0
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					b.Fatal(err)
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusOK {
					b.Fatalf("%s, %v", resp.Status, err)
				}
			}
		})
	}
}
