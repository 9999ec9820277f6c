// Package storage is the server from which functions fetch their inputs and to which they write
// their results. Objects are files below one directory. Clients use HTTP as with S3 when the bucket
// is part of the path: GET, HEAD, PUT and DELETE of /bucket/key. Signatures are ignored: whoever
// reaches the server's address may read and write all its objects.
//
// An object is stored completely or not at all: its bytes go to a part file, which is renamed to
// the object's name after the last byte. No key leads out of the directory: os.Root follows no path
// and no link there. Other features of S3 are answered with 501, so that nothing is stored that was
// meant differently.
package storage

import (
	"crypto/rand"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"
)

// MaxObject is the size of the largest object. The weights of a large network fit.
const MaxObject = 512 << 20

const (
	maxKey     = 1024 // as in S3
	maxElement = 255  // of a file system
	part       = ".part-"
)

// A Server serves one directory.
type Server struct {
	root *os.Root
	max  int64
}

// Open returns a server of the directory dir, which it makes if necessary. An object has at most
// max bytes.
func Open(dir string, max int64) (*Server, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	// left by a server that was killed; the pattern is valid
	left, _ := filepath.Glob(filepath.Join(dir, part+"*"))
	for _, name := range left {
		os.Remove(name)
	}
	return &Server{root, max}, nil
}

// Close closes the directory.
func (s *Server) Close() error { return s.root.Close() }

// A refusal is an unsuccessful answer, with one of S3's codes.
type refusal struct {
	status int
	code   string
	why    string
}

func (r *refusal) Error() string { return r.why }

func refuse(status int, code, format string, args ...any) error {
	return &refusal{status, code, fmt.Sprintf(format, args...)}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, err := keyOf(r)
	if err == nil {
		err = s.serve(w, r, key)
	}
	if err == nil {
		return
	}
	var no *refusal
	if !errors.As(err, &no) {
		no = &refusal{http.StatusInternalServerError, "InternalError", err.Error()}
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(no.status)
	_ = xml.NewEncoder(w).Encode(struct { // an error means that the client has gone
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
	}{Code: no.code, Message: no.why})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, key string) error {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return s.get(w, r, key)
	case http.MethodPut:
		return s.put(w, r, key)
	case http.MethodDelete:
		return s.delete(w, key)
	}
	w.Header().Set("Allow", "GET, HEAD, PUT, DELETE")
	return refuse(http.StatusMethodNotAllowed, "MethodNotAllowed",
		"%s is not served; GET, HEAD, PUT and DELETE of /bucket/key are", r.Method)
}

// keyOf returns the name of the requested object, which is also the name of its file.
func keyOf(r *http.Request) (string, error) {
	for parameter := range r.URL.Query() {
		// parameters that clients add to an ordinary request
		if parameter != "x-id" && !strings.HasPrefix(parameter, "X-Amz-") {
			return "", refuse(http.StatusNotImplemented, "NotImplemented",
				"the parameter %.100q is not served; whole objects are, by /bucket/key", parameter)
		}
	}
	key := strings.TrimPrefix(r.URL.Path, "/")
	if len(key) > maxKey {
		return "", refuse(http.StatusBadRequest, "KeyTooLongError",
			"the path has %d bytes; at most %d", len(key), maxKey)
	}
	elements := strings.Split(key, "/")
	bad := len(elements) < 2 || !utf8.ValidString(key) || strings.ContainsRune(key, 0)
	for _, element := range elements {
		bad = bad || element == "" || element[0] == '.' || len(element) > maxElement
	}
	if bad {
		return "", refuse(http.StatusBadRequest, "InvalidURI",
			"the path %.100q names no object; it must be /bucket/key, in parts of 1 to %d bytes that do not begin with a dot",
			r.URL.Path, maxElement)
	}
	return key, nil
}

func noSuchKey(key string) error {
	return refuse(http.StatusNotFound, "NoSuchKey", "there is no object %.100q", key)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, key string) error {
	f, err := s.root.Open(key)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return noSuchKey(key)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return noSuchKey(key)
	}
	w.Header().Set("ETag", tag(info))
	if path.Ext(key) == "" { // otherwise guessed from the content
		w.Header().Set("Content-Type", "application/octet-stream")
	}
	http.ServeContent(w, r, key, info.ModTime(), f)
	return nil
}

// tag returns an ETag, which differs between versions of an object.
func tag(info fs.FileInfo) string {
	return fmt.Sprintf(`"%x-%x"`, info.ModTime().UnixNano(), info.Size())
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, key string) error {
	if r.Header.Get("X-Amz-Copy-Source") != "" {
		return refuse(http.StatusNotImplemented, "NotImplemented",
			"objects are not copied here; get it and put it")
	}
	if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") ||
		strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		return refuse(http.StatusNotImplemented, "NotImplemented",
			"a body in signed chunks is not read; send it as it is")
	}
	if r.ContentLength > s.max {
		return s.tooLarge()
	}
	info, err := s.receive(http.MaxBytesReader(w, r.Body, s.max), key)
	if err != nil {
		return s.whyNot(err, key)
	}
	w.Header().Set("ETag", tag(info))
	w.WriteHeader(http.StatusOK)
	return nil
}

func (s *Server) receive(body io.Reader, key string) (info fs.FileInfo, err error) {
	name := part + rand.Text()
	f, err := s.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.root.Remove(name))
		}
	}()
	_, err = io.Copy(f, body)
	if err == nil {
		info, err = f.Stat()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if err := s.root.MkdirAll(path.Dir(key), 0o755); err != nil {
		return nil, err
	}
	return info, s.root.Rename(name, key)
}

func (s *Server) tooLarge() error {
	return refuse(http.StatusRequestEntityTooLarge, "EntityTooLarge",
		"an object has at most %d bytes", s.max)
}

// whyNot returns the refusal for a failed PUT if the client caused the failure.
func (s *Server) whyNot(err error, key string) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return s.tooLarge()
	case errors.Is(err, syscall.ENOSPC):
		return refuse(http.StatusInsufficientStorage, "InternalError",
			"the storage server's disk is full; free some there")
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR),
		errors.Is(err, fs.ErrExist), errors.Is(err, syscall.ENOTEMPTY):
		return refuse(http.StatusConflict, "InvalidRequest",
			"%.100q cannot be both an object and the beginning of other keys", key)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return refuse(http.StatusBadRequest, "IncompleteBody",
			"the body ended before its Content-Length")
	}
	return err
}

func (s *Server) delete(w http.ResponseWriter, key string) error {
	info, err := s.root.Lstat(key)
	if err == nil && info.Mode().IsRegular() {
		err = s.root.Remove(key)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	w.WriteHeader(http.StatusNoContent) // as in S3, even if there was no object
	return nil
}
