package timeline

import (
	"fmt"
	"time"
)

// A Pull says what the pull did that a start waited for. Of the layers of its image, those that it
// did not fetch were here, or came by another pull. Waited is how long it waited for others before
// its first layer.
type Pull struct {
	Received int64         `json:"receivedBytes"`
	Layers   int           `json:"layers"`
	Fetched  int           `json:"fetchedLayers"`
	Waited   time.Duration `json:"waited_ns,omitempty"`
}

func (p Pull) String() string {
	return fmt.Sprintf("pulled %.1f MB, %d of %d layers, after %d ms of waiting for others",
		float64(p.Received)/1e6, p.Fetched, p.Layers, p.Waited.Milliseconds())
}
