package scon

// A State tells what an attachment does at the moment.
type State struct {
	Bridge   string            `json:"bridge"`
	Uplinks  []string          `json:"uplinks"`
	Followed bool              `json:"followed"` // by a process
	Answered bool              `json:"answered"` // connections that were may go express
	Others   bool              `json:"others"`
	TCP      bool              `json:"tcp"`                // conntrack tolerates that
	Refused  []string          `json:"refused"`            // what keeps packets from it
	Settings map[string]string `json:"settings,omitempty"` // as they were
	Packets  map[string]uint64 `json:"packets"`            // by the path they took, or why
}

// State reads all anew.
func (v *View) State() (s State, err error) {
	s = State{Bridge: v.Bridge, Uplinks: v.uplinks(), Followed: v.Followed(), Settings: v.Settings,
		TCP: ToleratesGaps()}
	refused, err := v.Refused()
	if err != nil {
		return s, err
	}
	s.Refused = texts(refused)
	if s.Packets, err = v.Counts(); err != nil {
		return s, err
	}
	s.Answered, s.Others, err = v.Permitted()
	return s, err
}

// State returns what this process knows. It reads no rules, and may be asked often.
func (s *Scon) State() (now State, err error) {
	s.mu.Lock()
	now = State{Bridge: s.Bridge, Uplinks: s.out, Followed: true, TCP: ToleratesGaps(),
		Refused: texts(s.refused), Packets: s.Counts()}
	s.mu.Unlock()
	g, err := s.generation()
	if err != nil {
		return now, err
	}
	now.Answered, now.Others, err = permitted(s.programs.Permits, g)
	return now, err
}

func texts(refused []Refusal) (all []string) {
	for _, r := range refused {
		all = append(all, r.String())
	}
	return all
}
