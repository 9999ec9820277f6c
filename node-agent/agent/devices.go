package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// Devices returns the service that hands VFs out to holders other than sandboxes.
func (a *Agent) Devices() api.DevicesServer { return devices{agent: a} }

type devices struct {
	api.UnimplementedDevicesServer
	agent *Agent
}

var errNoVFs = status.Error(codes.FailedPrecondition, "this node has no VFs")

// Lease implements api.DevicesServer.
func (d devices) Lease(ctx context.Context, req *api.LeaseRequest) (*api.LeaseReply, error) {
	if d.agent.VFs == nil {
		return nil, errNoVFs
	}
	if err := d.agent.Ready(); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	holder, err := ownerOf(req.GetHolder())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	lease, err := d.agent.VFs.Lease(holder, vf.Want{BDF: req.Bdf, Driver: vf.Driver(req.Driver)})
	switch {
	case errors.Is(err, vf.ErrEmpty) || errors.Is(err, vf.ErrLinkDown):
		return nil, status.Error(codes.ResourceExhausted, err.Error())
	case err != nil:
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if err := ctx.Err(); err != nil { // the caller will not learn of the lease
		d.agent.VFs.Return(lease)
		return nil, status.FromContextError(err).Err()
	}
	d.agent.Log.Info("a VF is leased",
		"vf", lease.BDF, "holder", lease.Owner, "driver", lease.Driver)
	reply := &api.LeaseReply{
		Bdf: lease.BDF, Generation: lease.Generation, Interface: lease.Interface, Mac: lease.MAC,
	}
	if lease.Driver == vf.VFIO {
		reply.Group = lease.Group
	}
	return reply, nil
}

// ownerOf returns the holder that a caller names. Which process it means is settled now, because
// its PID may be another's later.
func ownerOf(h *api.Holder) (vf.Owner, error) {
	o := vf.Owner{Kind: vf.Kind(h.GetKind()), Name: h.GetName(), Netns: h.GetNetns()}
	if o.Kind == vf.Sandbox {
		return o, errors.New("a sandbox gets its VF when it is started")
	}
	if o.Kind == vf.Pod {
		o = vf.PodIn(o.Name, o.Netns)
	}
	if h.GetPid() != 0 {
		process, err := vf.Process(o.Kind, o.Name, int(h.GetPid()))
		if err != nil {
			return o, err
		}
		o.PID, o.StartTicks = process.PID, process.StartTicks
	}
	if err := o.Check(); err != nil {
		return o, err
	}
	if o.Dead() {
		return o, fmt.Errorf("the holder %s has ended already", o)
	}
	return o, nil
}

// Return implements api.DevicesServer.
func (d devices) Return(_ context.Context, req *api.ReturnRequest) (*api.ReturnReply, error) {
	if d.agent.VFs == nil {
		return nil, errNoVFs
	}
	leases := d.agent.VFs.Leases()
	i := slices.IndexFunc(leases, func(l vf.Lease) bool {
		return l.BDF == req.Bdf && l.Generation == req.Generation
	})
	if i < 0 {
		return &api.ReturnReply{}, nil
	}
	if kind := leases[i].Owner.Kind; kind == vf.Sandbox || kind == "" {
		return nil, status.Errorf(codes.FailedPrecondition,
			"VF %s is a sandbox's; it comes back when the sandbox ends", req.Bdf)
	}
	d.agent.VFs.Return(leases[i])
	return &api.ReturnReply{}, nil
}

// Watch implements api.DevicesServer.
func (d devices) Watch(_ *api.WatchRequest, reader api.Devices_WatchServer) error {
	if d.agent.VFs == nil {
		return errNoVFs
	}
	for news := range d.agent.VFs.Watch(reader.Context()) {
		reply := &api.WatchReply{}
		for _, n := range news {
			reply.Devices = append(reply.Devices, device(n.Status))
		}
		if err := reader.Send(reply); err != nil {
			return err
		}
	}
	return reader.Context().Err()
}

func device(v vf.Status) *api.Device {
	d := &api.Device{
		Bdf: v.BDF, State: string(v.State), Reason: v.Reason, Generation: v.Generation,
		Driver: string(v.Driver), Lost: v.Lost, LinkUp: v.LinkUp,
	}
	if o := v.Owner; o != (vf.Owner{}) {
		d.Holder = &api.Holder{
			Kind: string(o.Kind), Name: o.Name, Pid: int32(o.PID), Netns: o.Netns,
		}
	}
	return d
}
