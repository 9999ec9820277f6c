package knative

import (
	"bytes"
	"crypto/rsa"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/serving/pkg/apis/serving/v1beta1"
)

// A name of a DomainMapping may have a certificate of its own: that of a Secret of its namespace.
// Clients that ask for the name by SNI are shown it, and all others the listener's.

// A keyPair returns what a Secret has of one, read when it is first asked for: whoever takes in a
// Secret has no time for that.
type keyPair func() (*tls.Certificate, error)

// An owner's key works for everybody who connects, so it has bounds: RSA of 4096 bits takes
// milliseconds of a CPU already.
const mostKey, mostChain, mostBits = 8 << 10, 64 << 10, 4096

// anyClient takes whatever this server can sign with.
var anyClient = tls.ClientHelloInfo{
	SupportedVersions: []uint16{tls.VersionTLS13, tls.VersionTLS12},
	SignatureSchemes: []tls.SignatureScheme{tls.PSSWithSHA256, tls.PSSWithSHA384,
		tls.PSSWithSHA512, tls.PKCS1WithSHA256, tls.ECDSAWithP256AndSHA256,
		tls.ECDSAWithP384AndSHA384, tls.ECDSAWithP521AndSHA512, tls.Ed25519},
}

func pairOf(s *corev1.Secret) keyPair {
	return sync.OnceValues(func() (*tls.Certificate, error) {
		chain, key := s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]
		if len(chain) > mostChain || len(key) > mostKey {
			return nil, fmt.Errorf("secret %q is too large: %s may have %d KiB, and %s %d KiB",
				s.Name, corev1.TLSCertKey, mostChain>>10, corev1.TLSPrivateKeyKey, mostKey>>10)
		}
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil { // whose words may have something of the Secret
			return nil, fmt.Errorf("secret %q has no key pair in %s and %s, which are PEM of a"+
				" certificate and of its key", s.Name, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
		}
		if rsa, is := pair.PrivateKey.(*rsa.PrivateKey); is {
			switch bits := rsa.N.BitLen(); {
			case bits > mostBits:
				return nil, fmt.Errorf("secret %q has a key of %d bits, and may have %d", s.Name,
					bits, mostBits)
			case len(rsa.Primes) != 2: // Go signs with such a key the slow way
				return nil, fmt.Errorf("secret %q has a key of %d primes, and may have 2", s.Name,
					len(rsa.Primes))
			}
		}
		if err := anyClient.SupportsCertificate(&pair); err != nil {
			return nil, fmt.Errorf("secret %q has a key that no client takes", s.Name)
		}
		return &pair, nil
	})
}

// pair returns the key pair of a Secret.
func (d *domains) pair(of name) (*tls.Certificate, error) {
	d.mu.RLock()
	pair := d.pairs[of]
	d.mu.RUnlock()
	if pair == nil {
		return nil, fmt.Errorf("secret %q not found", of.name)
	}
	return pair()
}

// certificate returns by what a name is shown; nil: by the listener's own certificate.
func (d *domains) certificate(of string) *tls.Certificate {
	d.mu.RLock()
	secret, has := d.shown[of]
	d.mu.RUnlock()
	if !has {
		return nil
	}
	pair, _ := d.pair(secret) // the mapping's condition says what is wrong
	return pair
}

// misdirected reports whether a request comes over a connection that was made for another name,
// which is shown by another certificate than the request's host. A client of HTTP/2 sends requests
// for any host that a connection's certificate is good for, and makes a new one once it is told. A
// connection that was made for no name is for all.
func (d *domains) misdirected(r *http.Request) bool {
	if r.TLS == nil || r.TLS.ServerName == "" {
		return false
	}
	host, madeFor := bare(r.Host), bare(r.TLS.ServerName)
	its := d.certificate(host)
	if its == nil || host == madeFor {
		return false
	}
	shown := d.certificate(madeFor)
	if others := d.others.Load(); shown == nil && others != nil {
		shown, _ = (*others)(&tls.ClientHelloInfo{ServerName: madeFor})
	}
	return shown == nil || !bytes.Equal(its.Certificate[0], shown.Certificate[0])
}

// certified says in a mapping's status whether it has the certificate that it names.
func (r *reconciler) certified(o *v1beta1.DomainMapping) {
	if o.Spec.TLS == nil {
		o.Status.MarkTLSNotEnabled(v1beta1.ExternalDomainTLSNotEnabledMessage)
		return
	}
	o.Status.MarkCertificateNotRequired(v1beta1.TLSCertificateProvidedExternally)
	if _, err := r.road.domains.pair(secretFor(o)); err != nil {
		o.Status.MarkCertificateProvisionFailed(o.Spec.TLS.SecretName)
		failed := o.Status.GetCondition(v1beta1.DomainMappingConditionCertificateProvisioned)
		o.GetConditionSet().Manage(&o.Status).MarkFalse(failed.Type, failed.Reason, "%s %v",
			failed.Message, err)
	}
}

// Secure has a listener show who asks for a mapped name its certificate. Such a client resumes no
// former session, since it would not see that the certificate, or the name's owner, is another.
func (a *API) Secure(listener *tls.Config) {
	others := listener.GetCertificate
	a.road.domains.others.Store(&others)
	listener.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		certificate := a.road.domains.certificate(bare(hello.ServerName))
		if certificate == nil {
			return nil, nil
		}
		own := listener.Clone()
		own.GetConfigForClient, own.SessionTicketsDisabled = nil, true
		own.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return certificate, nil
		}
		return own, nil
	}
}
