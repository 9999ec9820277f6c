package couch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
)

// attempts is the number of tries of a write, by OpenWhisk's default.
const attempts = 4

// PutActivation keeps the record. It tries again if a write failed by no fault of its own. If the
// database refuses the record for its size, it keeps the record without its logs. It returns
// ErrConflict if there is another record of that id.
func (c *Client) PutActivation(ctx context.Context, record message.Record, now time.Time) error {
	id := record.Namespace + "/" + record.ActivationID
	pause := c.pause
	for try := 1; ; try++ {
		body := message.Encode(struct {
			ID string `json:"_id"`
			message.Record
			Updated    int64  `json:"updated"`
			EntityType string `json:"entityType"`
		}{id, record, now.UnixMilli(), "activation"})
		_, err := c.do(ctx, http.MethodPut, nil, body, activations, id)
		var refused *refusal
		switch {
		case err == nil:
			return nil
		case try > 1 && errors.Is(err, ErrConflict):
			return nil // an earlier try arrived, and only its answer was lost
		case errors.As(err, &refused) && refused.status == http.StatusRequestEntityTooLarge &&
			len(record.Logs) > 0:
			record.Logs = []string{fmt.Sprintf(
				"%-30s stderr: The logs were not kept: with them the record is larger than the database takes.",
				now.UTC().Format(time.RFC3339Nano))}
			continue
		case errors.As(err, &refused) && refused.status < 500 &&
			refused.status != http.StatusTooManyRequests, try >= attempts:
			return err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return err
		}
	}
}
