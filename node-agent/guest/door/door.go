// Package door is how the agent and a guest know each other on a connection into the guest.
//
//	agent                                  guest
//	32 bytes, a  ────────────────────────▶
//	             ◀──────────────────────── 32 bytes, g, and HMAC(secret, "guest" a g)
//	HMAC(secret, "agent" a g) ───────────▶
//	             ◀──────────────────────── 1: from here on the connection is the runtime's
//	                                       0: the runtime does not listen
//
// An agent that wants another TCP port of the guest than the runtime's names it in its proof, which
// is then HMAC(secret, "port" port a g) and the port in two bytes, big endian. A guest of an
// earlier version knows the first form alone, and hangs up on the second.
//
// Both know the sandbox's secret: the agent makes it, and gives it to the guest with its
// configuration. Any process of the host may connect to a guest, and a VMM that is broken out may
// take the CID of a guest that has died. So neither side shows anything before the other has proved
// itself: the secret itself is never sent, what was proved on one connection proves nothing on
// another, and one side's proof is never the other's, nor one port's another's. The last byte says
// that the guest has not hung up to make room for another caller while the agent's proof was on its
// way: without it the agent calls again, before it has sent a request.
//
// The package is part of the guest's process 1, so it stays small.
package door

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
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

// ErrNobody says that nobody listens on the port in the guest.
var ErrNobody = errors.New("nobody listens there in the sandbox")

// Runtime stands for the port that the guest's runtime listens on.
const Runtime uint16 = 0

var errNoSecret = errors.New("there is no secret to prove")

// A Secret is shared by one sandbox's guest and the agent alone. It is never shown; only its JSON
// holds it.
type Secret [32]byte

// NewSecret makes the secret of a sandbox.
func NewSecret() (s Secret) {
	rand.Read(s[:])
	return s
}

// IsZero reports whether there is no secret.
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

// Enter is the agent's side. When it returns nil, the guest has answered, and will pass on the
// bytes that follow to the listener on port.
func Enter(conn io.ReadWriter, secret Secret, port uint16) error {
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
	var theirs [proofSize]byte
	if _, err := io.ReadFull(conn, theirs[:]); err != nil {
		return err
	}
	if !hmac.Equal(theirs[:], proof(secret, "guest", nonces)) {
		return ErrStranger
	}
	if _, err := conn.Write(agentProof(secret, port, nonces)); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	if answer != welcome {
		return ErrNobody
	}
	return nil
}

// agentProof returns the proof by which the agent proves itself; it names the port.
func agentProof(secret Secret, port uint16, nonces [2 * nonceSize]byte) []byte {
	if port == Runtime {
		return proof(secret, "agent", nonces)
	}
	name := binary.BigEndian.AppendUint16(nil, port)
	return append(proof(secret, "port"+string(name), nonces), name...)
}

var welcome, nobody = [1]byte{1}, [1]byte{0}

// Admit is the guest's side. When its error is nil, the agent has called, wants to reach port, and
// waits for Welcome or Refuse.
func Admit(conn io.ReadWriter, secret Secret) (port uint16, err error) {
	if secret.IsZero() {
		return 0, errNoSecret
	}
	var nonces [2 * nonceSize]byte
	if _, err := io.ReadFull(conn, nonces[:nonceSize]); err != nil {
		return 0, err
	}
	rand.Read(nonces[nonceSize:])
	answer := append(nonces[nonceSize:len(nonces):len(nonces)], proof(secret, "guest", nonces)...)
	if _, err := conn.Write(answer); err != nil {
		return 0, err
	}
	var theirs [proofSize]byte
	if _, err := io.ReadFull(conn, theirs[:]); err != nil {
		return 0, err
	}
	if hmac.Equal(theirs[:], agentProof(secret, Runtime, nonces)) {
		return Runtime, nil
	}
	var name [2]byte
	if _, err := io.ReadFull(conn, name[:]); err != nil {
		return 0, ErrStranger
	}
	port = binary.BigEndian.Uint16(name[:])
	if port == Runtime || !hmac.Equal(theirs[:], agentProof(secret, port, nonces)[:proofSize]) {
		return 0, ErrStranger
	}
	return port, nil
}

// Welcome tells the agent that it is in; the bytes that follow are for the listener on the port.
func Welcome(conn io.Writer) error {
	_, err := conn.Write(welcome[:])
	return err
}

// Refuse tells the agent that nobody listens on the port.
func Refuse(conn io.Writer) error {
	_, err := conn.Write(nobody[:])
	return err
}

func proof(secret Secret, side string, nonces [2 * nonceSize]byte) []byte {
	mac := hmac.New(sha256.New, secret[:])
	io.WriteString(mac, side)
	mac.Write(nonces[:])
	return mac.Sum(nil)
}
