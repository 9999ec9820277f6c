// Package bridge is the path to the network of sandboxes that have no VF: a Linux bridge behind
// which the host translates addresses.
//
//	sandbox ─ eth0 ═ fastiov0p7 ─┐            ┌─ accepts, drops ─ masquerade ─ uplink ─▶
//	sandbox ─ eth0 ═ fastiov0p8 ─┴─ fastiov0 ─┤
//	             port isolated,  gateway      └─ :53, relayed to the resolvers of the host
//	             who is checked
//
// A container's port is one end of a pair, whose other end is in its network namespace. A microVM's
// is a tap device, whose file its VMM holds.
//
// Port n has the name, the MAC and the address that follow from n alone. So the rules hold a set of
// all ports that can ever be, and no sandbox needs one of its own: they are written anew only when
// a port of the host is published, or a sandbox ends that has one. Nothing has to be found again
// after a crash, either: a port dies with its network namespace or its file, these with their last
// process, and a lease is a file that names the number.
//
// What a sandbox sends is dropped at its port unless it comes from the port's own MAC and address,
// as IPv4 or as ARP. What passes may leave by the host's routes. It reaches no other sandbox, no
// other bridge but one that is the host's uplink, no link-local address (where clouds keep their
// metadata), and of the host itself nothing but the resolver.
//
// The rules are in tables of their own, and a drop in another table is final in netfilter. So this
// package also puts one rule at the head of each chain of others that filters what is forwarded or
// comes in, as Docker and ufw have them, and puts it back when a firewall is loaded anew.
package bridge
