package knative

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/fastiov/fastiov/invoker/whole"
)

// An Issuer signs the tokens by which programs show others whose they are: those of their
// revision's service account. Others find the public keys as they find those of a cluster, by
// OpenID's discovery at the issuer's URL. No API of the node takes such a token.
//
// Its file has a private key for each block of PEM. The first one signs, and all of them are shown.
// So a new key is put below the old one first, and above it once others have seen it; the old one
// may go when the last token that it signed has ended.
type Issuer struct {
	url    string
	signer jose.Signer
	public jose.JSONWebKeySet
}

// Tokens live so many seconds, unless they are to live for another time: as Kubernetes has it.
const (
	tokenLife  = 3600
	leastToken = 600
	mostToken  = 24 * 3600 // nobody takes a token back
)

const (
	aboutIssuer = "/.well-known/openid-configuration"
	keySet      = "/openid/v1/jwks"
)

// LoadIssuer reads the keys of the issuer at a URL. Their file is made at first start and readable
// by its owner only.
func LoadIssuer(file, url string) (*Issuer, error) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeKey(file); err != nil {
			return nil, fmt.Errorf("the key that signs service accounts' tokens cannot be kept: %w",
				err)
		}
	} else if err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others; chmod 600 it", file)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the key that signs service accounts' tokens: %w", err)
	}
	i := &Issuer{url: url}
	if !bytes.Contains(content, []byte("-----BEGIN")) {
		return nil, fmt.Errorf("%s holds no key; remove it to have one made", file)
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if err := i.add(block.Bytes); err != nil {
			return nil, fmt.Errorf("%s has a block that is no private key of P-256 (%w); correct "+
				"it, or remove the file to have one made: the tokens that live are worth nothing then",
				file, err)
		}
	}
	if len(i.public.Keys) < bytes.Count(content, []byte("-----BEGIN")) { // Decode passes it over
		return nil, fmt.Errorf("%s has a block that is not whole; correct it, or remove the file "+
			"to have a key made: the tokens that live are worth nothing then", file)
	}
	return i, nil
}

func (i *Issuer) add(der []byte) error {
	any, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return err
	}
	private, is := any.(*ecdsa.PrivateKey)
	if !is || private.Curve != elliptic.P256() {
		return fmt.Errorf("it is a %T", any)
	}
	key := jose.JSONWebKey{Key: private.Public(), Algorithm: string(jose.ES256), Use: "sig"}
	print, err := key.Thumbprint(crypto.SHA256)
	if err != nil {
		return err
	}
	key.KeyID = base64.RawURLEncoding.EncodeToString(print)
	i.public.Keys = append(i.public.Keys, key)
	if i.signer == nil {
		i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256,
			Key: jose.JSONWebKey{Key: private, KeyID: key.KeyID}},
			(&jose.SignerOptions{}).WithType("JWT"))
	}
	return err
}

func makeKey(file string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	err = whole.Write(file, text, 0o600, whole.New)
	if errors.Is(err, fs.ErrExist) { // whosever was first
		return nil
	}
	return err
}

// A token's claims are those of a cluster's, but for the Pod, which there is not yet when it is
// signed, and the account's uid.
type claims struct {
	jwt.Claims
	Audience   []string `json:"aud"` // a list, also of one
	Kubernetes bearer   `json:"kubernetes.io"`
}

type bearer struct {
	Namespace string `json:"namespace"`
	Account   struct {
		Name string `json:"name"`
	} `json:"serviceaccount"`
}

// sign returns a token of an account, as a volume projects it.
func (i *Issuer) sign(namespace, account string, as *corev1.ServiceAccountTokenProjection,
	now time.Time) (string, error) {
	account = cmp.Or(account, "default")
	c := claims{Claims: jwt.Claims{
		Issuer: i.url, Subject: "system:serviceaccount:" + namespace + ":" + account,
		ID:       rand.Text(),
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now),
		Expiry: jwt.NewNumericDate(now.Add(lifeOf(as))),
	}, Audience: []string{cmp.Or(as.Audience, i.url)}, Kubernetes: bearer{Namespace: namespace}}
	c.Kubernetes.Account.Name = account
	return jwt.Signed(i.signer).Claims(c).Serialize()
}

func lifeOf(as *corev1.ServiceAccountTokenProjection) time.Duration {
	return time.Duration(ptr.Deref(as.ExpirationSeconds, tokenLife)) * time.Second
}

func mayLive(as *corev1.ServiceAccountTokenProjection) bool {
	s := ptr.Deref(as.ExpirationSeconds, tokenLife)
	return s >= leastToken && s <= mostToken
}

// shown returns what anybody may read of the issuer at a path of it; nil: nothing is there.
func (i *Issuer) shown(path string) any {
	switch path {
	case aboutIssuer:
		return map[string]any{"issuer": i.url, "jwks_uri": i.url + keySet,
			"response_types_supported":              []string{"id_token"},
			"subject_types_supported":               []string{"public"},
			"id_token_signing_alg_values_supported": []string{string(jose.ES256)}}
	case keySet:
		return i.public
	}
	return nil
}

// show answers a GET with what the issuer shows.
func show(w http.ResponseWriter, what any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "public, max-age=60")
	_ = json.NewEncoder(w).Encode(what)
}
