package bus

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fastiov/fastiov/invoker/openwhisk/bus/kafkatest"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
)

const (
	childBroker = "FASTIOV_TEST_BUS_BROKER"
	childCouch  = "FASTIOV_TEST_BUS_COUCH"
)

func isChild() bool { return os.Getenv(childBroker) != "" }

// child is an invoker in a process of its own, which a test can kill.
func child() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	at, err := url.Parse(os.Getenv(childCouch))
	if err == nil {
		cfg := Config{Brokers: []string{os.Getenv(childBroker)}, Prefix: prefix,
			Invoker: message.NewInvoker(3, 1024), Slots: killSlots}
		var serve func() error
		if _, serve, err = join(ctx, cfg, at, newNode(), os.Stderr); err == nil {
			err = serve()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

const killSlots = 4

// start runs the invoker as a child of this process.
func (c *cluster) start() *exec.Cmd {
	c.t.Helper()
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childBroker+"="+c.brokers[0], childCouch+"="+c.db.URL.String())
	cmd.Stdout, cmd.Stderr = c.t.Output(), c.t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	return cmd
}

// TestNothingRunsTwice kills the invoker again and again while activations come. Activations that
// it had taken and not finished are lost, as with the cluster's own invoker. No others are lost,
// and none runs twice.
func TestNothingRunsTwice(t *testing.T) {
	const kills, between = 3, 100
	c := newCluster(t, kafkatest.Start(t))
	notes := filepath.Join(t.TempDir(), "notes")
	note := c.action("note", "note "+notes, 10)
	invoker := c.start()
	var asked []string
	for range kills {
		for range between {
			asked = append(asked, c.ask("note", note, nil))
		}
		first := asked[len(asked)-between]
		c.until("a few acknowledgements", func() bool {
			return len(c.acks[first]) > 0 || len(c.acks[asked[len(asked)-between/2]]) > 0
		})
		_ = invoker.Process.Kill()
		_ = invoker.Wait()
		invoker = c.start()
	}
	last := c.ask("note", note, nil)
	c.acked(last, 1)
	_ = invoker.Process.Signal(syscall.SIGTERM)
	if err := invoker.Wait(); err != nil {
		t.Fatal(err)
	}

	content, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	runs := map[string]int{}
	for _, id := range strings.Fields(string(content)) {
		runs[id]++
	}
	acked, lost := 0, 0
	heard := c.everyAck()
	for _, id := range asked {
		acks := len(heard[id])
		switch {
		case runs[id] > 1 || acks > 1:
			t.Errorf("%s ran %d times and was acknowledged %d times", id, runs[id], acks)
		case acks == 1 && runs[id] == 0:
			t.Errorf("%s was acknowledged and did not run", id)
		case acks == 1:
			acked++
		default:
			lost++
		}
	}
	if lost > kills*killSlots {
		t.Errorf("%d of %d are lost; %d kills may lose %d", lost, len(asked), kills,
			kills*killSlots)
	}
	t.Logf("%d asked, %d ran and were acknowledged, %d were lost in %d kills", len(asked), acked,
		lost, kills)
}
