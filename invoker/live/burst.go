package live

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// mostAtOnce bounds the calls of a burst. The paper's largest burst has 200.
const mostAtOnce = 200

// fire runs a burst with the key, and within the limits, of its caller. It answers when the burst
// is over. The burst ends when its caller hangs up.
func (p *Page) fire(w http.ResponseWriter, r *http.Request) {
	// a form of another site may carry a key in its URL
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		refuse(w, http.StatusForbidden, err.Error())
		return
	}
	if p.cfg.Admit(w, r) == nil {
		return
	}
	var wish struct {
		N int `json:"n"`
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<10))
	if err == nil {
		err = json.Unmarshal(body, &wish)
	}
	if err != nil || wish.N < 1 || wish.N > mostAtOnce {
		refuse(w, http.StatusBadRequest, fmt.Sprintf(`want {"n": N}, N from 1 to %d`, mostAtOnce))
		return
	}
	select {
	case p.burst <- struct{}{}:
		defer func() { <-p.burst }()
	default:
		refuse(w, http.StatusConflict, "a burst is under way; wait for its end")
		return
	}
	reply := http.NewResponseController(w)
	_ = reply.SetReadDeadline(time.Time{})
	// a burst may take longer than the server's limit for a reply
	_ = reply.SetWriteDeadline(time.Time{})
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-p.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	user, secret, _ := r.BasicAuth()
	result, err := p.cfg.Burst(ctx, user+":"+secret, wish.N)
	_ = reply.SetWriteDeadline(time.Now().Add(slow))
	if err != nil {
		refuse(w, http.StatusBadGateway, err.Error())
		return
	}
	answer(w, http.StatusOK, result)
}
