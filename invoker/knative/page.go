package knative

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A place says where a list goes on that comes in pages, in the form of Kubernetes's tokens. All
// pages are of the revision of the first, as long as the log of events reaches back to it.
type place struct {
	Form     string `json:"v"`
	Revision int64  `json:"rv"`
	Start    string `json:"start"` // the first name that may follow
}

const placeForm = "meta.k8s.io/v1"

// current in the place of a revision means what there is.
const current = -1

// token returns what a client hands back for the next page.
func (p place) token() string {
	p.Form = placeForm
	text, _ := json.Marshal(p)
	return base64.RawURLEncoding.EncodeToString(text)
}

func placeOf(token string) (p place, err error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	why := "continue key is not valid"
	switch {
	case err != nil:
		why += ": " + err.Error()
	case p.Form != placeForm:
		why += fmt.Sprintf(": server does not recognize this encoded version %s", p.Form)
	case p.Revision == 0 || p.Revision < current:
		why += ": incorrect encoded start resourceVersion (version meta.k8s.io/v1)"
	case p.Start == "":
		why += ": encoded start key empty (version meta.k8s.io/v1)"
	default:
		return p, nil
	}
	return p, apierrors.NewBadRequest("invalid continue token: " + why)
}

// placeIn returns where the list begins that a request asks for, and of which revision it is.
func (c *call) placeIn(how metav1.ListOptions) (at place, err error) {
	at.Revision = current
	asked, err := versionIn(how.ResourceVersion)
	switch now := c.world.reached(); {
	case how.Continue != "":
		if at, err = placeOf(how.Continue); err == nil && how.ResourceVersion != "" &&
			how.ResourceVersion != "0" {
			err = apierrors.NewBadRequest(
				"specifying resource version is not allowed when using continue")
		}
	case err != nil:
	case asked > now:
		err = tooLarge(asked, now)
	case how.ResourceVersionMatch == metav1.ResourceVersionMatchExact,
		how.ResourceVersionMatch == "" && how.Limit > 0 && asked > 0: // an older way to say that
		at.Revision = int64(asked)
	}
	return at, err
}

// page returns the objects that a list asks for, and what is said of them.
func (c *call) page(k *kind, choice choice, how metav1.ListOptions) (
	meta metav1.ListMeta, page []*entry, err error) {
	at, err := c.placeIn(how)
	if err != nil {
		return meta, nil, err
	}
	limit := int(how.Limit)
	var all []*entry
	var revision uint64
	if at.Revision == current {
		all, revision = c.world.list(k, c.user.Namespace)
	} else {
		revision = uint64(at.Revision)
		if all, err = c.world.listOf(k, c.user.Namespace, revision); err != nil {
			if how.Continue == "" {
				return meta, nil, errTooOld
			}
			at.Revision = current
			return meta, nil, tooOld(at)
		}
	}
	left := int64(0)
	for _, e := range all {
		switch {
		case e.name.name < at.Start || !choice.takes(e.encoded, e.itself):
		case limit > 0 && len(page) == limit:
			left++
		default:
			page = append(page, e)
		}
	}
	meta.ResourceVersion = strconv.FormatUint(revision, 10)
	if left > 0 {
		meta.Continue = place{Revision: int64(revision),
			Start: page[limit-1].name.name + "\x00"}.token()
		if choice.all() {
			meta.RemainingItemCount = &left
		}
	}
	return meta, page, nil
}

// tooOld says that a list cannot go on at its revision, and hands out a token by which it goes on
// with what there is.
func tooOld(on place) error {
	err := apierrors.NewResourceExpired("The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to " +
		"retrieve the remainder of the results. Continuing with the provided " +
		"token results in an inconsistent list - objects that were created, " +
		"modified, or deleted between the time the first chunk was returned " +
		"and now may show up in the list.")
	err.ErrStatus.Continue = on.token()
	return err
}

// errTooOld answers who asks for a list of a revision since which not all changes are known.
var errTooOld = apierrors.NewResourceExpired(
	"The resourceVersion for the provided list is too old.")

// tooLarge says that there is no such revision yet: it is of another store, such as one that was
// restored since.
func tooLarge(asked, now uint64) error {
	const what = "Too large resource version"
	err := apierrors.NewTimeoutError(fmt.Sprintf("%s: %d, current: %d", what, asked, now), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{
		{Type: metav1.CauseTypeResourceVersionTooLarge, Message: what}}
	return err
}

// versionIn returns the revision that a request names; 0: any.
func versionIn(text string) (version uint64, err error) {
	if text == "" {
		return 0, nil
	}
	if version, err = strconv.ParseUint(text, 10, 64); err != nil {
		wrong := field.Invalid(field.NewPath("resourceVersion"), text, err.Error())
		return 0, apierrors.NewBadRequest("invalid resource version: " + wrong.Error())
	}
	return version, nil
}
