package runtimes

import (
	"archive/zip"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const sentinel = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX"

// A language is a runtime to test. The actions have the same names in every language; see actions.
type language struct {
	name    string
	command func(t *testing.T) []string
	source  []byte
	file    string
	actions map[string]string
	zip     map[string]string // a package that reads a file beside it
	initOK  string
}

var languages = []language{{
	name: "python3",
	command: func(t *testing.T) []string {
		for _, name := range []string{"/usr/bin/python3", "python3"} {
			if path, err := exec.LookPath(name); err == nil {
				return []string{path, "-I", "-S", "-u"}
			}
		}
		t.Skip("needs python3")
		return nil
	},
	source: Python3, file: "proxy.py", initOK: `{"ok": true}`,
	actions: map[string]string{
		"echo":     "def main(args):\n    print('out')\n    import sys\n    print('err', file=sys.stderr)\n    return args",
		"other":    "def other(args):\n    return {'other': True}",
		"list":     "def main(args):\n    return [1, {'two': 2}]",
		"scalar":   "def main(args):\n    return 42",
		"nothing":  "def main(args):\n    pass",
		"throw":    "def main(args):\n    raise ValueError('boom')",
		"exit":     "import sys\ndef main(args):\n    sys.exit(3)",
		"syntax":   "def main(args:",
		"absent":   "x = 1",
		"env":      "import os\ndef main(args):\n    return {k: v for k, v in os.environ.items() if k.startswith('__OW_') or k == 'SETTING'}",
		"circular": "def main(args):\n    a = {}\n    a['a'] = a\n    return a",
		"count":    "n = 0\ndef main(args):\n    global n\n    n += 1\n    return {'n': n}",
		"unicode":  "def main(args):\n    return {'echo': args['s'], 'own': 'é\\u2603'}",
	},
	zip: map[string]string{
		"__main__.py":     "from lib.greet import greet\ndef main(args):\n    return {'got': greet(open('data.txt').read())}",
		"lib/__init__.py": "", "lib/greet.py": "def greet(x):\n    return 'hello ' + x",
		"data.txt": "zip",
	},
}, {
	name: "nodejs",
	command: func(t *testing.T) []string {
		path, err := exec.LookPath("node")
		if err != nil {
			t.Skip("needs node")
		}
		return []string{path}
	},
	source: NodeJS, file: "proxy.js", initOK: `{"OK":true}`,
	actions: map[string]string{
		"echo":     "function main(args) { console.log('out'); console.error('err'); return args }",
		"other":    "exports.other = async () => ({other: true})",
		"list":     "function main() { return [1, {two: 2}] }",
		"scalar":   "function main() { return 42 }",
		"nothing":  "function main() { }",
		"throw":    "function main() { throw new Error('boom') }",
		"reject":   "function main() { return Promise.reject(new Error('boom')) }",
		"loose":    "function main() { return new Promise(() => setImmediate(() => { throw new Error('boom') })) }",
		"syntax":   "function main( {",
		"absent":   "const x = 1",
		"env":      "const main = () => Object.fromEntries(Object.entries(process.env).filter(([k]) => k.startsWith('__OW_') || k === 'SETTING'))",
		"circular": "function main() { const a = {}; a.a = a; return a }",
		"count":    "let n = 0; const main = () => ({n: ++n})",
		"unicode":  "const main = args => ({echo: args.s, own: 'é\\u2603'})",
	},
	zip: map[string]string{"package.json": `{"main": "src/start.js"}`,
		"src/start.js": "const greet = require('./greet'); exports.main = () => ({got: greet(require('fs').readFileSync('data.txt', 'utf8'))})",
		"src/greet.js": "module.exports = x => 'hello ' + x", "data.txt": "zip"},
}}

// A proxy is a running runtime.
type proxy struct {
	t       *testing.T
	url     string
	process *exec.Cmd
	ended   chan struct{}
	out     [2]*buffer // stdout, stderr
}

// A buffer holds the output of a stream so far.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
	up *sync.Cond
}

func newBuffer() *buffer {
	b := &buffer{}
	b.up = sync.NewCond(&b.mu)
	return b
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.up.Broadcast()
	return b.b.Write(p)
}

// lines waits for the nth sentinel and returns all lines up to and including it.
func (b *buffer) lines(n int) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for strings.Count(b.b.String(), sentinel+"\n") < n {
		b.up.Wait()
	}
	return strings.Split(strings.TrimSuffix(b.b.String(), "\n"), "\n")
}

func start(t *testing.T, l language, env ...string) *proxy {
	t.Helper()
	file := filepath.Join(t.TempDir(), l.file)
	if err := os.WriteFile(file, l.source, 0o644); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	command := append(l.command(t), file)
	p := &proxy{
		t: t, url: "http://" + port, ended: make(chan struct{}),
		out: [2]*buffer{newBuffer(), newBuffer()},
	}
	p.process = exec.Command(command[0], command[1:]...)
	_, number, _ := net.SplitHostPort(port)
	p.process.Env = append([]string{"PORT=" + number, "PATH=" +
		os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}, env...)
	p.process.Stdout, p.process.Stderr = p.out[0], p.out[1]
	if err := p.process.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.process.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		p.process.Process.Kill()
		<-p.ended
		http.DefaultClient.CloseIdleConnections()
	})
	p.awaitListening(port)
	return p
}

func freePort(t *testing.T) string {
	t.Helper()
	for range 100 { // below the ports that the kernel chooses by default
		address := fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(20_000))
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

// awaitListening dials until the runtime accepts: a runtime does not report when it listens.
func (p *proxy) awaitListening(address string) {
	p.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			return
		}
		select {
		case <-p.ended:
			p.t.Fatalf("the runtime ended: %s", p.out[1].b.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
	p.t.Fatal("the runtime does not listen")
}

func (p *proxy) post(path, body string) (int, string) {
	p.t.Helper()
	resp, err := http.Post(p.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (p *proxy) init(value map[string]any) (int, string) {
	p.t.Helper()
	b, err := json.Marshal(map[string]any{"value": value})
	if err != nil {
		p.t.Fatal(err)
	}
	return p.post("/init", string(b))
}

// mustInit loads the language's action of that name.
func (p *proxy) mustInit(l language, action string) {
	p.t.Helper()
	code, ok := l.actions[action]
	if !ok {
		p.t.Skipf("no such case in %s", l.name)
	}
	if status, body := p.init(map[string]any{"code": code, "main": "main"}); status != 200 ||
		body != l.initOK {
		p.t.Fatalf("init: %d %s, want 200 %s", status, body, l.initOK)
	}
}

func eachLanguage(t *testing.T, f func(t *testing.T, l language)) {
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) { f(t, l) })
	}
}

// answers checks a status and, as JSON, a body. A want that is not JSON must be part of the body's
// error.
func answers(t *testing.T, what string, status int, body string, wantStatus int, want string) {
	t.Helper()
	var got, expected any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Errorf("%s: %d with no JSON: %q", what, status, body)
		return
	}
	ok := false
	if json.Unmarshal([]byte(want), &expected) == nil {
		ok = fmt.Sprint(got) == fmt.Sprint(expected)
	} else if object, isObject := got.(map[string]any); isObject {
		ok = strings.Contains(fmt.Sprint(object["error"]), want)
	}
	if status != wantStatus || !ok {
		t.Errorf("%s: %d %s, want %d %s", what, status, body, wantStatus, want)
	}
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		action, body string
		python, node [2]any // status and body
	}{
		{"echo", `{"value":{"a":[1,null]}}`, [2]any{200, `{"a":[1,null]}`}, [2]any{200, `{"a":[1,null]}`}},
		{"echo", `{}`, [2]any{200, `{}`}, [2]any{200, `{}`}},
		{"echo", `{"value":[1,2]}`, [2]any{200, `[1,2]`}, [2]any{200, `[1,2]`}},
		{"list", `{}`, [2]any{200, `[1,{"two":2}]`}, [2]any{200, `[1,{"two":2}]`}},
		{"unicode", `{"value":{"s":"ü\u2028\ud83d\ude00"}}`, [2]any{200, `{"echo":"ü\u2028😀","own":"é☃"}`}, [2]any{200, `{"echo":"ü\u2028😀","own":"é☃"}`}},
		{"scalar", `{}`, [2]any{502, "did not return a dictionary or array"}, [2]any{502, "did not return a dictionary or array"}},
		{"nothing", `{}`, [2]any{502, "did not return a dictionary or array"}, [2]any{200, `{}`}},
		{"throw", `{}`, [2]any{200, `{"error":"boom"}`}, [2]any{502, "An error has occurred: Error: boom"}},
		{"reject", `{}`, [2]any{}, [2]any{200, "boom"}},
		{"loose", `{}`, [2]any{}, [2]any{502, "An error has occurred: Error: boom"}},
		{"exit", `{}`, [2]any{400, "command exited"}, [2]any{}},
		{"circular", `{}`, [2]any{502, "not JSON"}, [2]any{502, "not JSON"}},
		{"echo", `{"value":`, [2]any{400, "Error unmarshaling request"}, [2]any{400, "Error unmarshaling request"}},
		{"echo", `[]`, [2]any{400, "Error unmarshaling request"}, [2]any{400, "Error unmarshaling request"}},
	} {
		eachLanguage(t, func(t *testing.T, l language) {
			t.Run(c.action, func(t *testing.T) {
				want := c.python
				if l.name == "nodejs" {
					want = c.node
				}
				p := start(t, l)
				p.mustInit(l, c.action)
				status, body := p.post("/run", c.body)
				answers(t, c.action+" "+c.body, status, body, want[0].(int), want[1].(string))
				if status != 400 || c.action == "exit" {
					for _, stream := range p.out {
						if lines := stream.lines(1); lines[len(lines)-1] != sentinel {
							t.Errorf("the log does not end with the sentinel: %q", lines)
						}
					}
				}
			})
		})
	}
}

func TestInit(t *testing.T) {
	for name, c := range map[string]struct {
		value  map[string]any
		status int
		want   string
	}{
		"no code":    {map[string]any{"main": "main"}, 403, "no code to execute"},
		"empty code": {map[string]any{"code": ""}, 403, "no code to execute"},
		"no value":   {nil, 403, "no code to execute"},
		"bad base64": {map[string]any{"code": "!!", "binary": true}, 400,
			"cannot decode the request"},
		"not a zip":    {map[string]any{"code": "bm8gemlw", "binary": true}, 502, "zip"},
		"syntax error": {map[string]any{"code": "syntax"}, 502, ""},
		"absent main":  {map[string]any{"code": "absent"}, 502, ""},
		"other main":   {map[string]any{"code": "other", "main": "other"}, 200, ""},
		"default main": {map[string]any{"code": "echo"}, 200, ""},
		"null settings": {map[string]any{"code": "echo", "main": nil, "env": nil, "binary": nil},
			200, ""},
	} {
		eachLanguage(t, func(t *testing.T, l language) {
			t.Run(name, func(t *testing.T) {
				p, value := start(t, l), map[string]any{}
				for k, v := range c.value {
					value[k] = v
				}
				if code, ok := value["code"].(string); ok && l.actions[code] != "" {
					value["code"] = l.actions[code]
				}
				status, body := p.init(value)
				want := c.want
				if c.status == 200 {
					want = l.initOK
				}
				answers(t, name, status, body, c.status, want)
			})
		})
	}
}

func TestOrderOfRequests(t *testing.T) {
	eachLanguage(t, func(t *testing.T, l language) {
		p := start(t, l)
		early := map[string]int{"python3": 500, "nodejs": 403}[l.name]
		if status, body := p.post("/run", `{}`); status != early {
			t.Errorf("run before init: %d %s, want %d", status, body, early)
		}
		if status, _ := p.init(map[string]any{"code": l.actions["syntax"]}); status != 502 {
			t.Errorf("broken init: %d", status)
		}
		p.mustInit(l, "count") // a failed init does not change the runtime
		status, body := p.init(map[string]any{"code": l.actions["echo"]})
		answers(t, "second init", status, body, 403, "Cannot initialize the action more than once.")
		for n := 1; n <= 3; n++ {
			status, body := p.post("/run", `{}`)
			answers(t, "warm run", status, body, 200, fmt.Sprintf(`{"n":%d}`, n))
		}
		status, body = p.post("/elsewhere", `{}`)
		answers(t, "unknown path", status, body, 404, "no such path")
		resp, err := http.Get(p.url + "/run")
		if err != nil || resp.StatusCode != 405 {
			t.Errorf("GET: %v, %v", resp, err)
		}
		resp.Body.Close()
	})
}

func TestBrokenActionStaysBroken(t *testing.T) {
	for l, want := range map[string]struct {
		action string
		status int
	}{"python3": {"exit", 500}, "nodejs": {"throw", 403}} {
		language := languages[slices.IndexFunc(languages,
			func(x language) bool { return x.name == l })]
		t.Run(l, func(t *testing.T) {
			p := start(t, language)
			p.mustInit(language, want.action)
			p.post("/run", `{}`)
			if status, body := p.post("/run", `{}`); status != want.status {
				t.Errorf("%d %s, want %d", status, body, want.status)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	eachLanguage(t, func(t *testing.T, l language) {
		p := start(t, l, "__OW_API_HOST=http://host")
		value := map[string]any{
			"code": l.actions["env"],
			"env":  map[string]any{"SETTING": "s", "__OW_NAMESPACE": "guest"},
		}
		if status, body := p.init(value); status != 200 {
			t.Fatal(status, body)
		}
		status, body := p.post("/run",
			`{"value":{},"activation_id":"0a","deadline":"123","action_name":"/guest/x","api_key":null}`)
		answers(t, "env", status, body, 200, `{"SETTING":"s","__OW_NAMESPACE":"guest","__OW_API_HOST":"http://host",
			"__OW_ACTIVATION_ID":"0a","__OW_DEADLINE":"123","__OW_ACTION_NAME":"/guest/x"}`)
	})
}

func TestLogsOfEachRunEndWithTheSentinel(t *testing.T) {
	eachLanguage(t, func(t *testing.T, l language) {
		p := start(t, l)
		p.mustInit(l, "echo")
		for n := 1; n <= 2; n++ {
			p.post("/run", `{}`)
			for i, word := range []string{"out", "err"} {
				want := slices.Repeat([]string{word, sentinel}, n)
				if got := p.out[i].lines(n); !slices.Equal(got, want) {
					t.Errorf("run %d: got %q, want %q", n, got, want)
				}
			}
		}
	})
}

func TestPackagedAction(t *testing.T) {
	eachLanguage(t, func(t *testing.T, l language) {
		p := start(t, l)
		if status, body := p.init(map[string]any{"code": zipped(t, l.zip), "main": "main",
			"binary": true}); status != 200 {
			t.Fatal(status, body)
		}
		status, body := p.post("/run", `{}`)
		answers(t, "zip", status, body, 200, `{"got":"hello zip"}`)
	})
}

func TestPackageOutsideItsDirectory(t *testing.T) {
	eachLanguage(t, func(t *testing.T, l language) {
		p := start(t, l)
		entries := map[string]string{"../../escaped": "x"}
		for name, content := range l.zip {
			entries[name] = content
		}
		p.init(map[string]any{"code": zipped(t, entries), "binary": true})
		tmp := ""
		for _, setting := range p.process.Env {
			if dir, ok := strings.CutPrefix(setting, "TMPDIR="); ok {
				tmp = dir
			}
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(tmp), "escaped")); err == nil {
			t.Error("a file of the archive landed outside of it")
		}
	})
}

func zipped(t *testing.T, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, content := range files {
		f, err := w.Create(name)
		if err == nil {
			_, err = io.WriteString(f, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// TestIdleConnectionBlocksNobody holds a connection open without a request while another one is
// served.
func TestIdleConnectionBlocksNobody(t *testing.T) {
	eachLanguage(t, func(t *testing.T, l language) {
		p := start(t, l)
		idle, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer idle.Close()
		p.mustInit(l, "echo")
		big := strings.Repeat("x", 3<<20)
		status, body := p.post("/run", `{"value":{"big":"`+big+`"}}`)
		if status != 200 || len(body) < len(big) {
			t.Errorf("%d with %d bytes", status, len(body))
		}
	})
}
