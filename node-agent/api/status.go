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
