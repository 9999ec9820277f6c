// Package door is how the agent and a guest know each other on a connection to the guest's runtime.
//
//	agent                                  guest
//	32 bytes, a  ────────────────────────▶
//	             ◀──────────────────────── 32 bytes, g, and HMAC(secret, "guest" a g)
//	HMAC(secret, "agent" a g) ───────────▶
//	             ◀──────────────────────── 1 byte: from here on the connection is the runtime's
//
// Both know the sandbox's secret: the agent makes it, and gives it to the guest with its
// configuration. Any process of the host may connect to a guest, and a VMM that is broken out may
// take the CID of a guest that has died. So neither side shows anything before the other has
// proved itself: the secret itself is never sent, what was proved on one connection proves nothing
// on another, and one side's proof is never the other's. The last byte says that the guest has not
// hung up to make room for another caller while the agent's proof was on its way: without it the
// agent calls again, before it has sent a request.
//
// The package is part of the guest's process 1, so it stays small.
package door

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
)

const (
	nonceSize = 32
	proofSize = sha256.Size
)

// ErrStranger says that the other side does not know the secret.
var ErrStranger = errors.New("the other side does not know the sandbox's secret")

var errNoSecret = errors.New("there is no secret to prove")

// A Secret is what one sandbox's guest and the agent know, and nobody else. It is never shown;
// only its JSON holds it.
type Secret [32]byte

// NewSecret makes the secret of a sandbox.
func NewSecret() (s Secret) {
	rand.Read(s[:])
	return s
}

// IsZero tells whether there is no secret.
func (s Secret) IsZero() bool { return s == Secret{} }

// Format implements fmt.Formatter: whatever the verb, the secret is not printed.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, "(secret)") }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, s[:]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Secret) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil || len(b) != len(s) {
		return fmt.Errorf("a secret has %d bytes in base64", len(s))
	}
	*s = Secret(b)
	return nil
}

// Enter is the agent's side. When it returns nil, who answered is the guest, and will pass on what
// is written next.
func Enter(conn io.ReadWriter, secret Secret) error {
	if secret.IsZero() {
		return errNoSecret
	}
	var nonces [2 * nonceSize]byte
	rand.Read(nonces[:nonceSize])
	if _, err := conn.Write(nonces[:nonceSize]); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, nonces[nonceSize:]); err != nil {
		return err
	}
	if err := expect(conn, proof(secret, "guest", nonces)); err != nil {
		return err
	}
	if _, err := conn.Write(proof(secret, "agent", nonces)); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, len(welcome)))
	return err
}

var welcome = []byte{1}

// Admit is the guest's side. When it returns nil, who called is the agent, and waits for Welcome.
func Admit(conn io.ReadWriter, secret Secret) error {
	if secret.IsZero() {
		return errNoSecret
	}
	var nonces [2 * nonceSize]byte
	if _, err := io.ReadFull(conn, nonces[:nonceSize]); err != nil {
		return err
	}
	rand.Read(nonces[nonceSize:])
	answer := append(nonces[nonceSize:len(nonces):len(nonces)], proof(secret, "guest", nonces)...)
	if _, err := conn.Write(answer); err != nil {
		return err
	}
	return expect(conn, proof(secret, "agent", nonces))
}

// Welcome tells the agent that it is in; what comes next is for the runtime.
func Welcome(conn io.Writer) error {
	_, err := conn.Write(welcome)
	return err
}

// expect reads a proof.
func expect(r io.Reader, want []byte) error {
	var got [proofSize]byte
	if _, err := io.ReadFull(r, got[:]); err != nil {
		return err
	}
	if !hmac.Equal(got[:], want) {
		return ErrStranger
	}
	return nil
}

func proof(secret Secret, side string, nonces [2 * nonceSize]byte) []byte {
	mac := hmac.New(sha256.New, secret[:])
	io.WriteString(mac, side)
	mac.Write(nonces[:])
	return mac.Sum(nil)
}
