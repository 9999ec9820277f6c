// Package kafkatest runs a real Apache Kafka for a test: one node, on loopback, with nothing of an
// earlier run in it.
package kafkatest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"
	"gopkg.in/yaml.v3"

	"github.com/fastiov/fastiov"
)

// versions holds the versions of versions.yaml.
type versions struct {
	Broker string `yaml:"broker"`
	Slf4j  string `yaml:"slf4j"`
}

// Start runs a broker until the test ends and returns its address. If there is no Java, or no way
// to get Kafka, it skips, or fails in continuous integration.
func Start(t testing.TB) (address string) {
	t.Helper()
	b := broker{Dir: t.TempDir()}
	b.start(t)
	return b.Address
}

// StartTLS is Start for a broker that also listens by TLS at secure, for clients that have the
// client's certificate.
func StartTLS(t testing.TB) (address, secure string, client *tls.Config) {
	t.Helper()
	b := broker{Dir: t.TempDir()}
	client = b.certify(t)
	b.start(t)
	return b.Address, b.Secure, client
}

// A broker holds the values for the broker's settings.
type broker struct {
	Dir                 string
	Address, Controller string
	Secure              string // where it listens by TLS, if it has a key
	Key, Certificate    string // files
}

func (b *broker) start(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a Kafka broker")
	}
	lacking := t.Skip
	if os.Getenv("FASTIOV_CI") != "" {
		lacking = t.Fatal // there it is installed
	}
	if _, err := exec.LookPath("java"); err != nil {
		lacking("no Java here to run Kafka: ", err)
	}
	jars, err := fetched()
	if err != nil {
		lacking("no Kafka to be had: ", err)
	}
	for tries := 5; ; tries-- {
		err := b.run(t, jars)
		if err == nil {
			return
		}
		// another process may take a port after it was chosen
		if tries == 1 || !strings.Contains(err.Error(), "Address already in use") {
			t.Fatal("Kafka does not answer: ", err)
		}
	}
}

// run starts a broker without data at ports that are free, and waits until it answers. Its error
// has the end of the broker's log.
func (b *broker) run(t testing.TB, jars string) error {
	t.Helper()
	b.Address, b.Controller = "127.0.0.1:"+freePort(t), "127.0.0.1:"+freePort(t)
	if b.Key != "" {
		b.Secure = "127.0.0.1:" + freePort(t)
	}
	settings := filepath.Join(b.Dir, "server.properties")
	if err := errors.Join(os.RemoveAll(filepath.Join(b.Dir, "data")),
		os.WriteFile(settings, render(t, properties, b), 0o600)); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(b.Dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	java := func(class string, args ...string) *exec.Cmd {
		cmd := exec.Command("java",
			append([]string{"-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp",
				filepath.Join(jars, "*"), class}, args...)...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	if err := java("kafka.tools.StorageTool", "format", "-t",
		"MkU3OEVBNTcwNTJENDM2Qg", "-c", settings).Run(); err != nil {
		t.Fatalf("formatting Kafka's storage: %v\n%s", err, tail(log.Name()))
	}
	process := java("kafka.Kafka", settings)
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	t.Cleanup(func() {
		_ = process.Process.Kill()
		<-ended
	})
	if err := answers(t.Context(), b.Address, ended); err != nil {
		return fmt.Errorf("%w\n%s", err, tail(log.Name()))
	}
	return nil
}

// certify makes one certificate, which broker and client both show and both trust.
func (b *broker) certify(t testing.TB) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kafkatest"},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	b.Key, b.Certificate = filepath.Join(b.Dir, "key.pem"), filepath.Join(b.Dir, "certificate.pem")
	shown := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(b.Certificate, shown, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.Key,
		append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), shown...),
		0o600); err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(certificate)
	return &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{
		{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
}

const properties = `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{{.Controller}}
listeners=PLAINTEXT://{{.Address}},CONTROLLER://{{.Controller}}{{with .Secure}},SSL://{{.}}{{end}}
advertised.listeners=PLAINTEXT://{{.Address}}{{with .Secure}},SSL://{{.}}{{end}}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL
{{if .Secure -}}
ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={{.Key}}
ssl.truststore.type=PEM
ssl.truststore.location={{.Certificate}}
{{end -}}
log.dirs={{.Dir}}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
`

// answers waits until the broker does, or ended.
func answers(ctx context.Context, address string, ended chan error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute,
		errors.New("five minutes are over"))
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		return err
	}
	defer client.Close()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for client.Ping(ctx) != nil {
		select {
		case <-tick.C:
		case err := <-ended:
			ended <- err
			return fmt.Errorf("it ended: %w", err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// fetched returns the directory of Kafka's jars. It is in the cache under its version; Maven
// fetches it the first time.
var fetched = sync.OnceValues(func() (string, error) {
	var all struct{ Kafka versions }
	if err := yaml.Unmarshal(fastiov.VersionsYAML, &all); err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	jars := filepath.Join(cache, fmt.Sprintf("kafka-%s-%s", all.Kafka.Broker, all.Kafka.Slf4j))
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(jars+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(jars); err == nil {
		return jars, nil
	}
	work, err := os.MkdirTemp(cache, "kafka-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := fetch(work, all.Kafka); err != nil {
		return "", err
	}
	return jars, os.Rename(filepath.Join(work, "jars"), jars)
})

// cacheDir returns the directory in which the product keeps what it fetched.
func cacheDir() (string, error) {
	if dir := os.Getenv("FASTIOV_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "fastiov"), err
}

func fetch(work string, v versions) error {
	var pom bytes.Buffer
	if err := template.Must(template.New("").Parse(project)).Execute(&pom, v); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), pom.Bytes(), 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	maven := exec.CommandContext(ctx, "mvn", "-q", "-B", "dependency:copy-dependencies",
		"-DoutputDirectory=jars", "-DincludeScope=runtime")
	maven.Dir = work
	if said, err := maven.CombinedOutput(); err != nil {
		return fmt.Errorf("%w %s", err, said)
	}
	return nil
}

const project = `<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>fastiov</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{{.Broker}}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>{{.Slf4j}}</version></dependency>
</dependencies></project>
`

func render(t testing.TB, text string, data any) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := template.Must(template.New("").Parse(text)).Execute(&out, data); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func freePort(t testing.TB) string {
	t.Helper()
	for range 100 { // below the ports that the kernel chooses by default
		port := strconv.Itoa(20_000 + mrand.IntN(12_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// tail is the end of a log.
func tail(path string) []byte {
	const most = 4000
	content, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	return content[max(0, len(content)-most):]
}
