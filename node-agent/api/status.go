package api

// SoundVFs counts the VFs that can be given out, now or when they come back.
func (r *StatusReply) SoundVFs() (n int) {
	for _, vf := range r.Vfs {
		if vf.State != "quarantined" && vf.State != "gone" {
			n++
		}
	}
	return n
}

// Settled tells whether no sandbox is being adopted or is ending. It is for a reply that is not brief.
func (r *StatusReply) Settled() bool {
	for _, s := range r.Sandboxes {
		if s.State == "adopting" || s.State == "ending" {
			return false
		}
	}
	return true
}
