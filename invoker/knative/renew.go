package knative

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/pool"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// untilRenewed returns when a token is renewed that lives for so long: as by a kubelet.
func untilRenewed(life time.Duration) time.Duration { return life * 8 / 10 }

// renewedAgain is the time after which a node is asked once more that could not renew a token.
const renewedAgain = 10 * time.Second

// renew gives a sandbox's programs new tokens of their service account, until ctx ends: at once,
// since the first ones were signed before its start, or by a former process; and whenever the first
// of them is about to end. Where the node cannot do so, the revision's owner is told.
func (p *prober) renew(ctx context.Context, s pool.Sandbox, v *v1.Revision) {
	for {
		next := p.renewal(shortest(v))
		var err error
		for i := range v.Spec.Containers {
			err = cmp.Or(err, p.renewOf(ctx, s, v, &v.Spec.Containers[i]))
		}
		switch code := status.Code(err); {
		case ctx.Err() != nil:
			return
		case code == codes.Unimplemented:
			p.warn(v, "TokenNotRenewed", fmt.Sprintf("a token of its service account ends %s "+
				"after its sandbox has started, which may live for longer: its node replaces no "+
				"files of a program that runs (--sandbox containerd does)", shortest(v)))
			return
		case code != codes.OK && code != codes.Unavailable: // whose node comes back
			p.warn(v, "TokenNotRenewed", "a token of its service account is not renewed, which is "+
				"tried again: "+saidOf(s.ID, err))
		}
		if err != nil {
			next = renewedAgain
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// renewOf gives the program of a container new tokens, if it has any.
func (p *prober) renewOf(ctx context.Context, s pool.Sandbox, v *v1.Revision,
	c *corev1.Container) error {
	of := &parcel{road: p.road, revision: v, namespace: v.Namespace}
	some := false
	mounts, err := of.mounts(c, func(m *corev1.VolumeMount, volume *corev1.Volume) (
		all []*node.File, err error) {
		if m.SubPath == "" { // else the program would not see another in its place
			all, err = of.tokensOf(volume)
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
	_, err = s.Client.Renew(ctx, request)
	return err
}

// tokensOf returns those files of a volume that are tokens.
func (p *parcel) tokensOf(of *corev1.Volume) (all []*node.File, err error) {
	sources, mode := sourcesOf(of)
	for _, s := range sources {
		as := s.ServiceAccountToken
		if as == nil {
			continue
		}
		token, err := p.tokens.sign(p.namespace, p.revision.Spec.ServiceAccountName, as,
			time.Now())
		if err != nil {
			return nil, err
		}
		general := uint32(ptr.Deref(mode, corev1.SecretVolumeSourceDefaultMode))
		all = append(all, &node.File{Name: as.Path, Data: []byte(token),
			Mode: general & uint32(fs.ModePerm)})
	}
	return all, nil
}

// shortest returns the life of that token of a revision's programs which ends first; 0: they have
// none.
func shortest(v *v1.Revision) (life time.Duration) {
	mounts := mountsOf(v)
	for i := range v.Spec.Volumes {
		of := &v.Spec.Volumes[i]
		sources, _ := sourcesOf(of)
		for _, s := range sources {
			as := s.ServiceAccountToken
			if as == nil || mounts[of.Name] == 0 {
				continue
			}
			if of := lifeOf(as); life == 0 || of < life {
				life = of
			}
		}
	}
	return life
}
