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
	return func(c io.ReadWriter) error { return Enter(c, s, Runtime) }
}

func admitting(s Secret) func(io.ReadWriter) error {
	return func(c io.ReadWriter) error {
		if _, err := Admit(c, s); err != nil {
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
		_, err := Admit(c, secret)
		return err
	}
	if agent, guest := meet(entering(secret), admit); !errors.Is(agent, io.EOF) || guest != nil {
		t.Errorf("agent: %v, guest: %v", agent, guest)
	}
}

// The guest learns the port that was asked for, and the agent whether somebody listens there.
func TestTheAgentNamesAPort(t *testing.T) {
	secret := NewSecret()
	for _, port := range []uint16{Runtime, 1, 8080, 65535} {
		for _, listens := range []bool{true, false} {
			var asked uint16
			agent, guest := meet(
				func(c io.ReadWriter) error { return Enter(c, secret, port) },
				func(c io.ReadWriter) (err error) {
					if asked, err = Admit(c, secret); err != nil {
						return err
					}
					if listens {
						return Welcome(c)
					}
					return Refuse(c)
				})
			refused := errors.Is(agent, ErrNobody)
			if guest != nil || asked != port || (agent == nil) != listens || refused == listens {
				t.Errorf("port %d: the guest hears %d, %v, the agent %v", port, asked, guest, agent)
			}
		}
	}
}

// between passes on what both say, but for what change makes of the agent's proof.
func between(secret Secret, port uint16, change func([]byte) []byte) (guest error) {
	a, far := net.Pipe()
	near, g := net.Pipe()
	go func() { defer a.Close(); _ = Enter(a, secret, port) }()
	go func() {
		defer near.Close()
		defer far.Close()
		heard := make([]byte, nonceSize+proofSize)
		io.ReadFull(far, heard[:nonceSize])
		near.Write(heard[:nonceSize])
		io.ReadFull(near, heard)
		far.Write(heard)
		n, _ := io.ReadAtLeast(far, heard, proofSize)
		near.Write(change(heard[:n]))
	}()
	defer g.Close()
	_, guest = Admit(g, secret)
	return guest
}

// A process that relays between agent and guest cannot have the agent reach another port.
func TestAPortIsPartOfTheProof(t *testing.T) {
	secret := NewSecret()
	same := func(said []byte) []byte { return said }
	other := func(said []byte) []byte { return append(said[:proofSize:proofSize], 0, 22) }
	none := func(said []byte) []byte { return append(said[:proofSize:proofSize], 0, 0) }
	for _, port := range []uint16{Runtime, 8080} {
		if err := between(secret, port, same); err != nil {
			t.Errorf("port %d, nothing changed: %v", port, err)
		}
	}
	for name, change := range map[string]func([]byte) []byte{"22": other, "none": none} {
		if err := between(secret, 8080, change); !errors.Is(err, ErrStranger) {
			t.Errorf("port 8080 became %s: %v", name, err)
		}
	}
	cut := func(said []byte) []byte { return said[:proofSize] }
	if err := between(secret, 8080, cut); err == nil {
		t.Error("a proof for a port was taken for one of the runtime's")
	}
}

// A proof is of no use to a peer that sends it back, to the same side or on another connection.
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
		}{c, io.MultiWriter(c, &spoken)}, secret, Runtime)
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
	f.Add(make([]byte, nonceSize+proofSize+2))
	f.Add([]byte("POST /run HTTP/1.1\r\nHost: runtime\r\nContent-Length: 12\r\n\r\n{\"value\":{}}"))
	f.Fuzz(func(t *testing.T, said []byte) {
		s := &stranger{Reader: bytes.NewReader(said)}
		if _, err := Admit(s, Secret{1}); err == nil {
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
		if Enter(s, Secret{1}, 9000) == nil {
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
