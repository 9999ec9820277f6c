package openwhisk

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/invoker/whole"
)

// A Certificate is that of an HTTPS listener, as its files hold it when a client connects. While
// they hold none, as between the writing of the two, the last one serves.
type Certificate struct {
	certFile, keyFile string
	last              atomic.Pointer[tls.Certificate]
}

// LoadCertificate reads the certificate of an HTTPS listener at that address. If none is named, it
// makes one that signs itself, once. That one stays in dir, so that a client that was told to trust
// it need not be told again.
func LoadCertificate(certFile, keyFile, dir, listen string) (*Certificate, error) {
	if (certFile == "") != (keyFile == "") {
		return nil, errors.New(
			"a certificate needs its key and a key its certificate: give both --tls-cert and --tls-key")
	}
	if certFile == "" {
		certFile, keyFile = filepath.Join(dir, "tls-cert.pem"), filepath.Join(dir, "tls-key.pem")
		if _, err := os.Stat(certFile); errors.Is(err, fs.ErrNotExist) {
			if err := signOneself(certFile, keyFile, listen, time.Now()); err != nil {
				return nil, fmt.Errorf("a certificate for HTTPS: %w", err)
			}
		}
	}
	c := &Certificate{certFile: certFile, keyFile: keyFile}
	if err := c.read(); err != nil {
		return nil, fmt.Errorf("the certificate for HTTPS, %s: %w", certFile, err)
	}
	return c, nil
}

func (c *Certificate) read() error {
	certificate, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err == nil {
		c.last.Store(&certificate)
	}
	return err
}

// Get is a tls.Config's GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	_ = c.read()
	return c.last.Load(), nil
}

// signOneself makes a certificate for this machine's names, good for ten years.
func signOneself(certFile, keyFile, listen string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "fastiov"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1),
			net.IPv6loopback},
	}
	if name, err := os.Hostname(); err == nil {
		template.DNSNames = append(template.DNSNames, name)
	}
	if host, _, err := net.SplitHostPort(listen); err == nil && host != "" {
		if ip := net.ParseIP(host); ip == nil {
			template.DNSNames = append(template.DNSNames, host)
		} else if !ip.IsUnspecified() {
			template.IPAddresses = append(template.IPAddresses, ip)
		}
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	// The certificate last: where it is, its key is.
	private = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	if err := whole.Write(keyFile, private, 0o600, os.Rename); err != nil {
		return err
	}
	signed = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})
	return whole.Write(certFile, signed, 0o644, os.Rename)
}
