package access

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"

	"github.com/fastiov/fastiov/invoker/store"
)

// Guest is the subject, and the namespace, that every invoker has, in no store.
const Guest = "guest"

// A Subject is somebody who may call. It never changes once it is shared.
type Subject struct {
	Name       string      `json:"subject"`
	Blocked    bool        `json:"blocked,omitempty"`
	Namespaces []Namespace `json:"namespaces"`
	Limits     Limits      `json:"limits,omitzero"`
}

// A Namespace is one that the subject owns, and what opens it.
type Namespace struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
	Hash string `json:"sha256"` // of the secret, in hexadecimal
}

// Limits are what a namespace may use. Zero is the invoker's default.
type Limits struct {
	InvocationsPerMinute  int `json:"invocationsPerMinute,omitempty"`
	ConcurrentInvocations int `json:"concurrentInvocations,omitempty"`
	FiresPerMinute        int `json:"firesPerMinute,omitempty"`
	ChangesPerMinute      int `json:"changesPerMinute,omitempty"` // of entities
	ReadsPerMinute        int `json:"readsPerMinute,omitempty"`   // of entities and records

	// What its entities may take.
	MaxEntities int `json:"maxEntities,omitempty"` // how many
	MaxEntityMB int `json:"maxEntityMB,omitempty"` // without their code: they are kept in memory
	MaxCodeMB   int `json:"maxCodeMB,omitempty"`

	// What one action that it runs may use at most, where that is less than the invoker's bound for everybody.
	MaxActionMemory  int `json:"maxActionMemory,omitempty"`  // MB
	MaxActionTimeout int `json:"maxActionTimeout,omitempty"` // ms
	MaxActionLogs    int `json:"maxActionLogs,omitempty"`    // MB
}

// Defaults are generous: on a node of one's own it is the pool that says what the machine can carry, so the rates are what no single
// machine answers and the concurrency is what it can queue in memory. An operator who shares the node sets them lower, OpenWhisk's
// being 60, 30 and 60: with those, a burst of 200 would be refused.
//
// What entities may take is what the invoker can hold: decoded, a document takes three to four times its
// bytes of memory.
var Defaults = Limits{
	InvocationsPerMinute: 6_000_000, ConcurrentInvocations: 10_000, FiresPerMinute: 60_000,
	ChangesPerMinute: 6_000, ReadsPerMinute: 600_000, MaxEntities: 10_000, MaxEntityMB: 64, MaxCodeMB: 1024,
}

// Space returns the bounds of what the entities may take.
func (l Limits) Space() store.Space {
	return store.Space{
		Entities: int64(l.MaxEntities), Documents: int64(l.MaxEntityMB) << 20, Code: int64(l.MaxCodeMB) << 20,
	}
}

// Over lays the limits that are set over others.
func (l Limits) Over(others Limits) Limits {
	for _, limit := range []struct {
		set  int
		over *int
	}{
		{l.InvocationsPerMinute, &others.InvocationsPerMinute},
		{l.ConcurrentInvocations, &others.ConcurrentInvocations},
		{l.FiresPerMinute, &others.FiresPerMinute},
		{l.ChangesPerMinute, &others.ChangesPerMinute},
		{l.ReadsPerMinute, &others.ReadsPerMinute},
		{l.MaxEntities, &others.MaxEntities},
		{l.MaxEntityMB, &others.MaxEntityMB},
		{l.MaxCodeMB, &others.MaxCodeMB},
		{l.MaxActionMemory, &others.MaxActionMemory},
		{l.MaxActionTimeout, &others.MaxActionTimeout},
		{l.MaxActionLogs, &others.MaxActionLogs},
	} {
		if limit.set > 0 {
			*limit.over = limit.set
		}
	}
	return others
}

// A Key is what a caller proves itself with, by HTTP's Basic scheme.
type Key struct{ UUID, Secret string }

// String is the key as clients take it.
func (k Key) String() string { return k.UUID + ":" + k.Secret }

// NewKey makes a key.
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
	return Key{fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]), string(secret[:])}
}

// Owned is the namespace that a key opens.
func (k Key) Owned(namespace string) Namespace {
	hash := sha256.Sum256([]byte(k.Secret))
	return Namespace{Name: namespace, UUID: k.UUID, Hash: hex.EncodeToString(hash[:])}
}

// opens compares in a time that does not tell how much of the secret was right.
func opens(secret string, hash *[sha256.Size]byte) bool {
	given := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(given[:], hash[:]) == 1
}
