package knative

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/pool"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// untilRenewed returns when a token is renewed that lives for so long: as by a kubelet, but for a
// random part, so that not all are at once.
func untilRenewed(life time.Duration) time.Duration {
	return time.Duration(float64(life) * (0.76 + 0.08*rand.Float64()))
}

// The first tokens of a sandbox are renewed within firstRenewed: they were signed before its start,
// or by a former process, which may have left many sandboxes. What failed is tried again after
// renewedAgain, and later after up to a minute; so is a node that renews no files, since it may
// become one of another version.
const (
	firstRenewed = time.Minute
	renewedAgain = 10 * time.Second
)

// A renewal says when tokens are renewed.
type renewal struct {
	now    func() time.Time // a token's end is of wall time, which goes on while a machine sleeps
	look   time.Duration    // so often it is read
	within time.Duration    // a node's answer
}

func newRenewal() renewal {
	return renewal{now: func() time.Time { return time.Now().Round(0) },
		look: 10 * time.Second, within: time.Minute}
}

// await waits until it is a certain time, and reports whether it is before ctx ends.
func (r *renewal) await(ctx context.Context, at time.Time) bool {
	for r.now().Before(at) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(r.look):
		}
	}
	return ctx.Err() == nil
}

// renew gives a container's program new tokens of its service account until ctx ends, each time
// before one of the former ends. Where one may have ended, the revision's owner is told.
func (p *prober) renew(ctx context.Context, s pool.Sandbox, v *v1.Revision, c *corev1.Container) {
	life, alone := livesOf(v, c)
	if alone > 0 {
		p.warn(v, "TokenNotRenewed", fmt.Sprintf("a token of its service account that is mounted "+
			"alone (subPath) ends %s after its sandbox has started; mount its folder", alone))
	}
	if life == 0 {
		return
	}
	next := p.renewal.now().Add(rand.N(firstRenewed))
	end := next.Add(life / 5) // as of what a former process has renewed after 4/5 of its life
	again := renewedAgain
	var told time.Time // that its node replaces no files
	for p.renewal.await(ctx, next) {
		now := p.renewal.now()
		err := p.renewOf(ctx, s, v, c)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			next, end, again = now.Add(untilRenewed(life)), now.Add(life), renewedAgain
			continue
		}
		ended := !p.renewal.now().Before(end)
		switch code := status.Code(err); {
		case code == codes.Unimplemented:
			if again = time.Minute; 0 <= now.Sub(told) && now.Sub(told) < eventsFor/2 {
				break // each time would be a change to watchers
			}
			told = now
			p.warn(v, "TokenNotRenewed", fmt.Sprintf("a token of its service account ends %s "+
				"after its sandbox has started, which may live for longer: its node replaces no "+
				"files of a program that runs; --sandbox containerd of this version does", life))
		case ended || code != codes.Unavailable && code != codes.DeadlineExceeded &&
			code != codes.NotFound: // that node comes back, and that sandbox's end is told
			p.warn(v, "TokenNotRenewed", "a token of its service account is not renewed, which is "+
				"tried again: "+saidOf(s.ID, err))
		}
		next, again = p.renewal.now().Add(again), min(2*again, time.Minute)
	}
}

// renewOf gives a container's program new tokens, if it has any.
func (p *prober) renewOf(ctx context.Context, s pool.Sandbox, v *v1.Revision,
	c *corev1.Container) error {
	of := &parcel{road: p.road, revision: v, namespace: v.Namespace}
	some := false
	mounts, err := of.mounts(c, func(m *corev1.VolumeMount, volume *corev1.Volume) (
		[]*node.File, error) {
		tokens, err := of.tokensOf(volume)
		all := below(tokens, m.SubPath)
		if len(all) == 1 && all[0].Name == "" {
			return nil, err // the program would not see another in its place
		}
		some = some || len(all) > 0
		return all, err
	})
	if err != nil || !some {
		return err
	}
	request := &node.RenewRequest{Id: s.ID, Mounts: mounts}
	if c.Name != v.Spec.GetContainer().Name {
		request.Sidecar = c.Name
	}
	ctx, cancel := context.WithTimeout(ctx, p.renewal.within)
	defer cancel()
	_, err = s.Client.Renew(ctx, request)
	return err
}

// tokensOf returns those files of a volume that are tokens. It finds the same of its paths as
// filesOf did: those that a later source has are left out.
func (p *parcel) tokensOf(of *corev1.Volume) (map[string]*node.File, error) {
	sources, mode := sourcesOf(of)
	general := uint32(ptr.Deref(mode, corev1.SecretVolumeSourceDefaultMode)) & uint32(fs.ModePerm)
	tokens := map[string]*node.File{}
	for _, s := range sources {
		if as := s.ServiceAccountToken; as != nil {
			token, err := p.tokenOf(as)
			if err != nil {
				return nil, err
			}
			tokens[as.Path] = &node.File{Name: as.Path, Data: token, Mode: general}
			continue
		}
		if len(tokens) == 0 {
			continue
		}
		object, err := p.objectOf(&s)
		if err != nil {
			return nil, err
		}
		for _, item := range placesOf(&s, object) {
			_, _, has := contentOf(object, item.Key)
			if has || !optional(&s) { // then it was there
				delete(tokens, item.Path)
			}
		}
	}
	return tokens, nil
}

// livesOf returns the life of that token of a container which ends first: of those that are in a
// folder, and of those that are mounted alone; 0: it has none.
func livesOf(v *v1.Revision, c *corev1.Container) (inFolder, alone time.Duration) {
	for _, m := range c.VolumeMounts {
		part := strings.Trim(path.Clean("/"+m.SubPath), "/")
		for i := range v.Spec.Volumes {
			sources, _ := sourcesOf(&v.Spec.Volumes[i])
			for _, s := range sources {
				as := s.ServiceAccountToken
				if as == nil || m.Name != v.Spec.Volumes[i].Name {
					continue
				}
				life := &inFolder
				switch {
				case as.Path == part:
					life = &alone
				case part != "" && !strings.HasPrefix(as.Path, part+"/"):
					continue
				}
				if of := lifeOf(as); *life == 0 || of < *life {
					*life = of
				}
			}
		}
	}
	return inFolder, alone
}
