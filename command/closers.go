package command

// closers closes what was opened, the newest first.
type closers []func()

func (c *closers) onClose(close func()) { *c = append(*c, close) }

func (c *closers) close() {
	for n := len(*c) - 1; n >= 0; n-- {
		(*c)[n]()
	}
}
