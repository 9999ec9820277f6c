package access

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/fastiov/fastiov/invoker/store"
)

// Guest names the subject and the namespace that every invoker has. They are in no store.
const Guest = "guest"

// A Subject is an account that may call. It never changes once it is shared.
type Subject struct {
	Name       string      `json:"subject"`
	Blocked    bool        `json:"blocked,omitempty"`
	Namespaces []Namespace `json:"namespaces"`
	Limits     Limits      `json:"limits,omitempty"`
}

// A Namespace holds the name of one of a subject's namespaces and the hash of its key.
type Namespace struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
	Hash string `json:"sha256"` // of the secret, in hexadecimal
}

// An Allowance holds what a namespace may use.
type Allowance struct {
	InvocationsPerMinute  int
	ConcurrentInvocations int
	FiresPerMinute        int
	ChangesPerMinute      int // of entities
	ReadsPerMinute        int // of entities and records

	// What the namespace's entities may take.
	MaxEntities int // how many
	MaxEntityMB int // without their code: they are kept in memory
	MaxCodeMB   int

	// What one of its actions may use at most, where that is less than the invoker's bound for all;
	// 0: the invoker's bound.
	MaxActionMemory  int // MB
	MaxActionTimeout int // ms
	MaxActionLogs    int // MB
}

// Defaults are generous. On a node with one user, the pool decides what the machine can carry, so
// the rates exceed what one machine can answer, and the concurrency is what it can queue in memory.
// An operator who shares the node sets lower limits. OpenWhisk's are 60, 30 and 60, which would
// refuse a burst of 200.
//
// The bounds of entities are what the invoker can hold in memory: decoded, a document takes three
// to four times its bytes.
var Defaults = Allowance{
	InvocationsPerMinute: 6_000_000, ConcurrentInvocations: 10_000, FiresPerMinute: 60_000,
	ChangesPerMinute: 6_000, ReadsPerMinute: 600_000, MaxEntities: 10_000, MaxEntityMB: 64,
	MaxCodeMB: 1024,
}

// Space returns the bounds of what the entities may take. In a store's bounds 0 means no bound. So
// an allowance of 0 becomes one byte, which is less than any document or code.
func (a Allowance) Space() store.Space {
	space := store.Space{
		Entities: int64(a.MaxEntities), Documents: max(int64(a.MaxEntityMB)<<20, 1),
		Code: max(int64(a.MaxCodeMB)<<20, 1),
	}
	if a.MaxEntities == 0 {
		space.Documents = 1
	}
	return space
}

// A Limit is a limit that an operator can set.
type Limit struct {
	Name  string // in JSON
	What  string // what it bounds
	Least int
	of    func(*Allowance) *int
}

// Settable lists every Limit.
var Settable = []Limit{
	{"invocationsPerMinute", "calls in a minute", 0,
		func(a *Allowance) *int { return &a.InvocationsPerMinute }},
	{"concurrentInvocations", "calls under way", 0,
		func(a *Allowance) *int { return &a.ConcurrentInvocations }},
	{"firesPerMinute", "triggers fired in a minute", 0,
		func(a *Allowance) *int { return &a.FiresPerMinute }},
	{"changesPerMinute", "entities changed in a minute", 0,
		func(a *Allowance) *int { return &a.ChangesPerMinute }},
	{"readsPerMinute", "requests in a minute that read entities and records", 0,
		func(a *Allowance) *int { return &a.ReadsPerMinute }},
	{"maxEntities", "entities", 0, func(a *Allowance) *int { return &a.MaxEntities }},
	{"maxEntityMB", "MB of entities, without their code", 0,
		func(a *Allowance) *int { return &a.MaxEntityMB }},
	{"maxCodeMB", "MB of code", 0, func(a *Allowance) *int { return &a.MaxCodeMB }},
	{"maxActionMemory", "MB that an action may have", 1,
		func(a *Allowance) *int { return &a.MaxActionMemory }},
	{"maxActionTimeout", "milliseconds that an action may take", 1,
		func(a *Allowance) *int { return &a.MaxActionTimeout }},
	{"maxActionLogs", "MB that an action may log", 1,
		func(a *Allowance) *int { return &a.MaxActionLogs }},
}

// Of returns how much of it is allowed.
func (l Limit) Of(a Allowance) int { return *l.of(&a) }

// Limits holds the limits of one subject by name. 0 allows nothing. A limit that is not in the map
// is the default of all subjects.
type Limits map[string]int

// Over returns others with these limits in place of its own. It ignores names it does not know,
// which another version may have set.
func (l Limits) Over(others Allowance) Allowance {
	for _, limit := range Settable {
		if most, set := l[limit.Name]; set {
			*limit.of(&others) = most
		}
	}
	return others
}

// check returns an error for limits that cannot be set.
func (l Limits) check() error {
	for name, most := range l {
		i := slices.IndexFunc(Settable, func(s Limit) bool { return s.Name == name })
		if i < 0 {
			return fmt.Errorf("there is no limit %.100q", name)
		}
		if least := Settable[i].Least; most < least || most > maxLimit {
			return fmt.Errorf("%s is %d: it must be from %d to %d", name, most, least, maxLimit)
		}
	}
	return nil
}

const maxLimit = 1<<31 - 1

// A Key authenticates a caller by HTTP's Basic scheme.
type Key struct{ UUID, Secret string }

// String returns the key as clients take it.
func (k Key) String() string { return k.UUID + ":" + k.Secret }

// NewKey returns a new random key.
func NewKey() Key {
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_" // 64 of them
	var id [16]byte
	var secret [64]byte
	rand.Read(id[:])
	rand.Read(secret[:])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4
	for i, b := range secret {
		secret[i] = letters[b%64]
	}
	return Key{fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]),
		string(secret[:])}
}

// Owned returns the namespace that a key opens.
func (k Key) Owned(namespace string) Namespace {
	hash := sha256.Sum256([]byte(k.Secret))
	return Namespace{Name: namespace, UUID: k.UUID, Hash: hex.EncodeToString(hash[:])}
}

// opens compares in a time that does not show how much of the secret was right.
func opens(secret string, hash *[sha256.Size]byte) bool {
	given := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(given[:], hash[:]) == 1
}
