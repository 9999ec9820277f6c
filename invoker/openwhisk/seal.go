package openwhisk

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/whole"
)

// A Seal keeps the keys of callers from being read in a store: a promise holds its caller's key
// sealed, and only the invoker that made it can open that. Its file has a line for each of its own
// keys. The first one seals; the others still open what they sealed. So a new key is put above the
// old one, which may go when no promise is left that is as old.
type Seal struct {
	file  string
	names []string // of the ciphers, in the order of the file
	by    map[string]cipher.AEAD
}

// A sealed key names what it was sealed with. Its data begins with a nonce.
type sealed struct {
	By   string `json:"by"`
	Data []byte `json:"data"`
}

// LoadSeal reads the file, which is made at first start and readable by its owner only.
func LoadSeal(file string) (*Seal, error) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return makeSeal(file)
	}
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others; chmod 600 it", file)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the key that seals promises: %w", err)
	}
	s := &Seal{file: file, by: map[string]cipher.AEAD{}}
	for line := range strings.FieldsSeq(string(content)) {
		key, err := hex.DecodeString(line)
		if err != nil || len(key) != sealSize {
			return nil, fmt.Errorf(
				"%s has a line that is no key of %d hexadecimal digits; correct it,"+
					" or remove the file to have one made", file, 2*sealSize)
		}
		s.add(key)
	}
	if len(s.names) == 0 {
		return nil, fmt.Errorf("%s holds no key; remove it to have one made", file)
	}
	return s, nil
}

const sealSize = 32 // bytes: AES-256

func (s *Seal) add(key []byte) {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // its size is right
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // its block size is right
	}
	hash := sha256.Sum256(key)
	name := hex.EncodeToString(hash[:4])
	s.names = append(s.names, name)
	s.by[name] = aead
}

// newSeal is one that is in no file.
func newSeal() *Seal {
	s := &Seal{file: "its memory", by: map[string]cipher.AEAD{}}
	key := make([]byte, sealSize)
	rand.Read(key)
	s.add(key)
	return s
}

func makeSeal(file string) (_ *Seal, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("the key that seals promises cannot be kept: %w", err)
		}
	}()
	key := make([]byte, sealSize)
	rand.Read(key)
	err = whole.Write(file, fmt.Appendf(nil, "%x\n", key), 0o600, whole.New)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return LoadSeal(file) // whosever was first
}

// close seals a key for the promise of that id, and for no other.
func (s *Seal) close(key access.Key, id string) *sealed {
	name := s.names[0]
	return &sealed{name, s.by[name].Seal(nil, nil, []byte(key.String()), []byte(id))}
}

func (s *Seal) open(k *sealed, id string) (key access.Key, err error) {
	by, found := s.by[k.By]
	if !found {
		return key, fmt.Errorf(
			"its caller's key was sealed with the key %s, which %s does not hold (any more)",
			k.By, s.file)
	}
	text, err := by.Open(nil, nil, k.Data, []byte(id))
	if err != nil {
		return key, fmt.Errorf(
			"its caller's key was sealed with the key %s of %s, and was changed since",
			k.By, s.file)
	}
	key.UUID, key.Secret, _ = strings.Cut(string(text), ":")
	return key, nil
}
