package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// Funcs are the plugin's answers to CNI's commands.
var Funcs = skel.CNIFuncs{Add: add, Del: del, Check: check, GC: gc, Status: status}

// Decode reads one line of at most 1 MiB.
func Decode(from io.Reader, to any) error {
	return json.NewDecoder(io.LimitReader(from, most)).Decode(to)
}

// attachment names what args are about.
func (c *conf) attachment(args *skel.CmdArgs) Attachment {
	return Attachment{c.Name, args.ContainerID, args.IfName}
}

// tell asks the agent, and returns its refusal as CNI's error.
func (c *conf) tell(req Request) (Reply, error) {
	log := c.log().With("command", req.Command, "attachment", req.Attachment.String())
	log.Debug("asking the agent", "request", req)
	reply, err := ask(c.RunDir, req)
	switch {
	case errors.Is(err, errAway):
		log.Error("refused", "why", err)
		return reply, errors.Join(types.NewError(types.ErrTryAgainLater, err.Error(), ""), errAway)
	case err == nil && reply.Code != 0:
		err = types.NewError(reply.Code, reply.Why, "")
	}
	if err != nil {
		log.Error("refused", "why", err)
		return reply, err
	}
	log.Debug("done", "reply", reply)
	return reply, nil
}

func add(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err == nil {
		err = c.takeArgs(args.Args)
	}
	if err != nil {
		return err
	}
	req := Request{
		Command: Add, Attachment: c.attachment(args), Netns: args.Netns, Device: c.DeviceID,
		Driver: c.Driver, Settings: c.settings(), MTU: c.MTU,
		Ranges: c.IPAM.Ranges, Routes: c.IPAM.Routes,
	}
	reply, err := c.tell(req)
	if err != nil {
		return err
	}
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, DNS: c.DNS}
	for _, r := range req.Routes {
		result.Routes = append(result.Routes, routeOut(r))
	}
	err = c.addressed(args, req, &reply, result)
	if err == nil {
		err = c.deviceInfo(reply)
	}
	if err == nil {
		var whole *current.Result
		if whole, err = c.chained(args, reply, result); err == nil {
			err = types.PrintResult(whole, c.CNIVersion)
		}
	}
	if err == nil {
		return nil
	}
	if undo := c.end(args); undo != nil {
		c.log().Error("what was done is left to a DEL", "why", undo)
	}
	return err
}

// addressed has another plugin allocate the addresses, and the agent set them. The interface is
// there before, because a plugin may need it, as that of DHCP does.
func (c *conf) addressed(
	args *skel.CmdArgs, req Request, reply *Reply, result *current.Result,
) error {
	if !c.delegates() {
		return nil
	}
	theirs, err := invoke.DelegateAdd(context.Background(), c.IPAM.Type, args.StdinData, nil)
	if err != nil {
		return err
	}
	got, err := current.NewResultFromResult(theirs)
	if err != nil {
		return err
	}
	if len(got.IPs) == 0 { // as sriov-cni: the container would run, and nobody could reach it
		return fmt.Errorf("the IPAM plugin %s gave no address", c.IPAM.Type)
	}
	req.Command = Address
	for _, ip := range got.IPs {
		address, err := prefixOf(ip.Address)
		if err != nil {
			return fmt.Errorf("the IPAM plugin %s: an address: %w", c.IPAM.Type, err)
		}
		gateway, _ := netip.AddrFromSlice(ip.Gateway)
		req.IPs = append(req.IPs, IP{address, gateway.Unmap()})
	}
	for _, r := range got.Routes {
		route, err := routeIn(r)
		if err != nil {
			return fmt.Errorf("the IPAM plugin %s: a route: %w", c.IPAM.Type, err)
		}
		req.Routes = append(req.Routes, route)
	}
	if _, err := c.tell(req); err != nil {
		return err
	}
	reply.IPs, result.Routes = req.IPs, got.Routes
	if result.DNS.IsEmpty() {
		result.DNS = got.DNS
	}
	return nil
}

// chained adds the interface to the result of the plugins before, if there were any.
func (c *conf) chained(
	args *skel.CmdArgs, reply Reply, own *current.Result,
) (*current.Result, error) {
	whole := own
	if c.PrevResult != nil {
		before, err := current.NewResultFromResult(c.PrevResult)
		if err != nil {
			return nil, err
		}
		whole = before
		whole.Routes = append(whole.Routes, own.Routes...)
		if whole.DNS.IsEmpty() {
			whole.DNS = own.DNS
		}
	}
	at := len(whole.Interfaces)
	whole.Interfaces = append(whole.Interfaces, &current.Interface{
		Name: args.IfName, Mac: reply.MAC, Mtu: reply.MTU, Sandbox: args.Netns, PciID: reply.Device,
	})
	for _, ip := range reply.IPs {
		out := &current.IPConfig{Interface: &at, Address: netOf(ip.Address)}
		if ip.Gateway.IsValid() {
			out.Gateway = ip.Gateway.AsSlice()
		}
		whole.IPs = append(whole.IPs, out)
	}
	return whole, nil
}

// deviceInfo tells Multus of the device, if it asks and nobody has told it before.
func (c *conf) deviceInfo(reply Reply) error {
	file := c.RuntimeConfig.DeviceInfoFile
	if file == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pci := map[string]string{"pci-address": reply.Device, "pf-pci-address": reply.PF}
	err = json.NewEncoder(f).Encode(map[string]any{"type": "pci", "version": "1.1.0", "pci": pci})
	return errors.Join(err, f.Close())
}

func del(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	return c.end(args)
}

// end takes back what there is of an attachment. Ending one that is not there succeeds.
func (c *conf) end(args *skel.CmdArgs) error {
	req := Request{Command: Del, Attachment: c.attachment(args), Netns: args.Netns}
	_, err := c.tell(req)
	if errors.Is(err, errAway) {
		if err = leaveNote(c.RunDir, req.Attachment); err == nil {
			// An agent that has begun to listen since may not have seen the note. It drops it.
			if _, again := c.tell(req); !errors.Is(again, errAway) {
				err = again
			}
		}
	}
	if c.delegates() {
		err = errors.Join(err, invoke.DelegateDel(context.Background(), c.IPAM.Type,
			args.StdinData, nil))
	}
	return err
}

func check(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if c.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig,
			"a CHECK needs the prevResult of its ADD", "")
	}
	before, err := current.NewResultFromResult(c.PrevResult)
	if err != nil {
		return err
	}
	req := Request{Command: Check, Attachment: c.attachment(args), Netns: args.Netns}
	for i, nic := range before.Interfaces {
		if nic.Name != args.IfName || nic.Sandbox != args.Netns {
			continue
		}
		req.Device, req.Settings.MAC, req.MTU = nic.PciID, nic.Mac, nic.Mtu
		for _, ip := range before.IPs {
			if ip.Interface != nil && *ip.Interface == i {
				address, err := prefixOf(ip.Address)
				if err != nil {
					return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
				}
				gateway, _ := netip.AddrFromSlice(ip.Gateway)
				req.IPs = append(req.IPs, IP{address, gateway.Unmap()})
			}
		}
	}
	if req.Routes, err = routesBy(req.IPs, before); err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	if req.Settings.MAC == "" {
		return types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("prevResult has no interface %s in %s", args.IfName, args.Netns), "")
	}
	if _, err := c.tell(req); err != nil || !c.delegates() {
		return err
	}
	return invoke.DelegateCheck(context.Background(), c.IPAM.Type, args.StdinData, nil)
}

// routesBy returns the result's routes that lead by an interface with these addresses. Those of
// another plugin's interface lead by a gateway that is not in its networks, or have none and go
// where another interface has addresses, too.
func routesBy(ips []IP, of *current.Result) (routes []Route, err error) {
	alone := len(ips) == len(of.IPs)
	for _, r := range of.Routes {
		route, err := routeIn(r)
		if err != nil {
			return nil, err
		}
		if alone || route.GW.IsValid() && slices.ContainsFunc(ips, func(ip IP) bool {
			return ip.Address.Masked().Contains(route.GW)
		}) {
			routes = append(routes, route)
		}
	}
	return routes, nil
}

func routeIn(r *types.Route) (Route, error) {
	dst, err := prefixOf(r.Dst)
	gw, _ := netip.AddrFromSlice(r.GW)
	return Route{dst, gw.Unmap(), r.MTU, r.AdvMSS, r.Priority, r.Table, r.Scope}, err
}

func gc(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	req := Request{Command: GC, Attachment: Attachment{Network: c.Name}}
	for _, a := range c.ValidAttachments {
		req.Valid = append(req.Valid, Attachment{c.Name, a.ContainerID, a.IfName})
	}
	_, err = c.tell(req)
	if c.delegates() {
		err = errors.Join(err, invoke.DelegateGC(context.Background(), c.IPAM.Type,
			args.StdinData, nil))
	}
	return err
}

func status(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if _, err := c.tell(Request{Command: Status}); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
	}
	if !c.delegates() {
		return nil
	}
	return invoke.DelegateStatus(context.Background(), c.IPAM.Type, args.StdinData, nil)
}

func routeOut(r Route) *types.Route {
	out := &types.Route{Dst: netOf(r.Dst), MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority,
		Table: r.Table, Scope: r.Scope}
	if r.GW.IsValid() {
		out.GW = r.GW.AsSlice()
	}
	return out
}

func netOf(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n net.IPNet) (netip.Prefix, error) {
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, fmt.Errorf("%v is no address", n)
	}
	return netip.PrefixFrom(addr.Unmap(), ones), nil
}
