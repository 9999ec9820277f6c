package door

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// meet lets the two sides meet and returns what each says.
func meet(agent, guest func(io.ReadWriter) error) (agentSays, guestSays error) {
	a, g := net.Pipe()
	said := make(chan error)
	go func() { defer g.Close(); said <- guest(g) }()
	agentSays = agent(a)
	a.Close()
	return agentSays, <-said
}

func entering(s Secret) func(io.ReadWriter) error {
	return func(c io.ReadWriter) error { return Enter(c, s) }
}

func admitting(s Secret) func(io.ReadWriter) error {
	return func(c io.ReadWriter) error {
		if err := Admit(c, s); err != nil {
			return err
		}
		return Welcome(c)
	}
}

func TestWhoKnowsTheSecretMeets(t *testing.T) {
	secret := NewSecret()
	if agent, guest := meet(entering(secret), admitting(secret)); agent != nil || guest != nil {
		t.Errorf("agent: %v, guest: %v", agent, guest)
	}
}

func TestWhoDoesNotKnowTheSecretIsRefused(t *testing.T) {
	agent, guest := meet(entering(NewSecret()), admitting(NewSecret()))
	if !errors.Is(agent, ErrStranger) || guest == nil {
		t.Errorf("two secrets: agent %v, guest %v", agent, guest)
	}
	if agent, guest := meet(entering(Secret{}), admitting(Secret{})); agent == nil || guest == nil {
		t.Errorf("no secret: agent %v, guest %v", agent, guest)
	}
}

// Where the guest hung up after the agent's proof was sent, the agent is not in.
func TestWhoIsNotWelcomedIsNotIn(t *testing.T) {
	secret := NewSecret()
	admit := func(c io.ReadWriter) error {
		defer c.(io.Closer).Close()
		return Admit(c, secret)
	}
	if agent, guest := meet(entering(secret), admit); !errors.Is(agent, io.EOF) || guest != nil {
		t.Errorf("agent: %v, guest: %v", agent, guest)
	}
}

// What one side proved is of no use to who sends it back, to the same side or on another connection.
func TestAProofIsOfNoUseToWhoSawIt(t *testing.T) {
	secret := NewSecret()
	mirror := func(c io.ReadWriter) error {
		b := make([]byte, nonceSize)
		io.ReadFull(c, b)
		c.Write(append(b, make([]byte, proofSize)...))
		_, err := io.ReadFull(c, b)
		return err
	}
	if agent, _ := meet(entering(secret), mirror); !errors.Is(agent, ErrStranger) {
		t.Errorf("the agent takes its own nonce back: %v", agent)
	}
	var spoken bytes.Buffer
	_, err := meet(func(c io.ReadWriter) error {
		return Enter(struct {
			io.Reader
			io.Writer
		}{c, io.MultiWriter(c, &spoken)}, secret)
	}, admitting(secret))
	if err != nil {
		t.Fatal(err)
	}
	replay := func(c io.ReadWriter) error {
		c.Write(spoken.Next(nonceSize))
		b := make([]byte, nonceSize+proofSize)
		io.ReadFull(c, b)
		_, err := c.Write(spoken.Next(proofSize))
		return err
	}
	if _, guest := meet(replay, admitting(secret)); !errors.Is(guest, ErrStranger) {
		t.Errorf("the guest takes what the agent said once: %v", guest)
	}
	reflect := func(c io.ReadWriter) error {
		b := make([]byte, nonceSize+proofSize)
		c.Write(b[:nonceSize])
		io.ReadFull(c, b)
		_, err := c.Write(b[nonceSize:])
		return err
	}
	if _, guest := meet(reflect, admitting(secret)); !errors.Is(guest, ErrStranger) {
		t.Errorf("the guest takes its own proof back: %v", guest)
	}
}

func TestASecretIsInItsJSONAlone(t *testing.T) {
	secret := NewSecret()
	kept, err := json.Marshal(secret)
	var read Secret
	if err != nil || json.Unmarshal(kept, &read) != nil || read != secret {
		t.Errorf("%s, %v", kept, err)
	}
	for _, text := range []string{`""`, `"AAAA"`, `"?"`, `7`} {
		if json.Unmarshal([]byte(text), &read) == nil {
			t.Errorf("%s is taken for a secret", text)
		}
	}
	holder := struct{ Secret Secret }{secret}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		said := fmt.Sprintf(verb, holder)
		part := base64.StdEncoding.EncodeToString(secret[:6])
		if !strings.Contains(said, "(secret)") || strings.Contains(said, part) {
			t.Errorf("%s prints %s", verb, said)
		}
	}
}

// A stranger may say anything.
type stranger struct {
	io.Reader
	heard bytes.Buffer
}

func (s *stranger) Write(p []byte) (int, error) { return s.heard.Write(p) }

func FuzzAdmit(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, nonceSize+proofSize))
	f.Add([]byte("POST /run HTTP/1.1\r\nHost: runtime\r\nContent-Length: 12\r\n\r\n{\"value\":{}}"))
	f.Fuzz(func(t *testing.T, said []byte) {
		s := &stranger{Reader: bytes.NewReader(said)}
		if Admit(s, Secret{1}) == nil {
			t.Fatal("a stranger was admitted")
		}
		if n := s.heard.Len(); n != 0 && n != nonceSize+proofSize {
			t.Fatalf("a stranger was told %d bytes", n)
		}
	})
}

func FuzzEnter(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, nonceSize+proofSize))
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		s := &stranger{Reader: bytes.NewReader(said)}
		if Enter(s, Secret{1}) == nil {
			t.Fatal("a stranger was taken for the guest")
		}
		if n := s.heard.Len(); n != nonceSize {
			t.Fatalf("a stranger was told %d bytes", n)
		}
	})
}

func BenchmarkHandshake(b *testing.B) {
	secret := NewSecret()
	for b.Loop() {
		meet(entering(secret), admitting(secret))
	}
}
