package image

import ("context"; "errors")

func (c *Cache) pull(ctx context.Context, ref string) (Runtime, error) { return Runtime{}, errors.New("x") }
