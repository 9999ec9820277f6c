package api

// SoundVFs counts the VFs that sandboxes can be given, now or when they come back. A VF of another
// holder may never come back, and one that is kept as a netdev is never given to one.
func (r *StatusReply) SoundVFs() (n int) {
	for _, vf := range r.Vfs {
		others := vf.Kind != "" && vf.Kind != "sandbox"
		sound := vf.State != "quarantined" && vf.State != "gone"
		if sound && !others && vf.Home != "netdev" {
			n++
		}
	}
	return n
}

// Settled reports whether no sandbox is being adopted or is ending. It is for a reply that is not
// brief.
func (r *StatusReply) Settled() bool {
	for _, s := range r.Sandboxes {
		if s.State == "adopting" || s.State == "ending" {
			return false
		}
	}
	return true
}
