package command

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/pool"
)

// stop ends what an invoker serves. It is not ready any more and takes no call; callers who wait, and calls
// that run, have the time of --drain. What runs then is ended, and its callers hear that.
func (f *front) stop(servers []*http.Server, whisk *openwhisk.API) {
	serves.Store(false)
	f.cfg.Log.Info("stopping: no call is taken any more, and those under way may end", "within", f.drain)
	whisk.Stop()
	drain, cancel := context.WithTimeout(context.Background(), f.drain)
	defer cancel()
	var answered sync.WaitGroup
	for _, server := range servers {
		answered.Go(func() { _ = server.Shutdown(drain) })
	}
	answered.Wait()
	whisk.Await(drain)
	if f.warm == "" {
		whisk.Close()
	} else if err := noteLeft(f.warm, whisk.Leave()); err != nil {
		f.cfg.Log.Error("which sandboxes are warm cannot be noted; the next invoker ends them", "err", err)
	}
	shutDown(servers, 5*time.Second)
}

// The sandboxes that an invoker leaves warm are noted in its run directory for the next one there.
func leftFile(runDir string) string { return filepath.Join(runDir, "warm.json") }

func noteLeft(file string, left []pool.Left) error {
	content, err := json.Marshal(left)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// takeLeft reads the note and removes it: what this process leaves without one, in a crash, may be running
// anything.
func takeLeft(file string, log *slog.Logger) (left []pool.Left) {
	if file == "" {
		return nil
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = errors.Join(os.Remove(file), json.Unmarshal(content, &left))
	}
	if err != nil {
		log.Warn("which sandboxes the invoker before has left warm cannot be read; they end", "err", err)
		return nil
	}
	return left
}
