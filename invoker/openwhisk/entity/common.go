package entity

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Common holds the fields that all entities share.
type Common struct {
	Namespace   string `json:"namespace"` // of an action in a package: namespace/package
	Name        string `json:"name"`
	Version     string `json:"version"`
	Publish     bool   `json:"publish"`
	Annotations Pairs  `json:"annotations"`
	Updated     int64  `json:"updated"` // Unix milliseconds
}

// CommonChange holds the fields that every PUT may set.
type CommonChange struct {
	Version     *string `json:"version"`
	Publish     *bool   `json:"publish"`
	Annotations *Pairs  `json:"annotations"`
}

// Path is the entity's name.
func (c *Common) Path() Path {
	namespace, pkg, _ := strings.Cut(c.Namespace, "/")
	return Path{namespace, pkg, c.Name}
}

// IsNew tells an entity that is yet to be created from one that is changed.
func (c *Common) IsNew() bool { return c.Version == "" }

// Named returns the Common with which an entity of that name begins.
func Named(path Path) Common { return Common{Namespace: path.Above(), Name: path.Name} }

var semantic = regexp.MustCompile(`^\d{1,9}\.\d{1,9}\.\d{1,9}$`)

// change raises the patch number, unless the request names a version.
func (c *Common) change(by CommonChange, now time.Time) error {
	switch {
	case by.Version != nil:
		if !semantic.MatchString(*by.Version) {
			return bad("version is %.40q; it must be three numbers, as 1.0.0", *by.Version)
		}
		c.Version = *by.Version
	case c.IsNew():
		c.Version = "0.0.1"
	default:
		var major, minor, patch int
		if _, err := fmt.Sscanf(c.Version, "%d.%d.%d", &major, &minor, &patch); err != nil {
			return bad("version %q cannot be raised: %v", c.Version, err)
		}
		c.Version = fmt.Sprintf("%d.%d.%d", major, minor, patch+1)
	}
	if by.Publish != nil {
		c.Publish = *by.Publish
	}
	c.Annotations = given(by.Annotations, c.Annotations)
	c.Updated = now.UnixMilli()
	return c.Annotations.check("annotations")
}
