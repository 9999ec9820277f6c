// Package express compares ways from a program to the network: its own NIC, a container's bridge
// and NAT, and what is to make these cheaper.
//
//	orders: round, load, arms in turn
//	  └▶ an arm is a process in a network namespace of its own, which is a host with a bridge,
//	     Docker's rules, containers, and a server behind its NIC
//	       └▶ the load between container and server, on one CPU, for some CPU time
//	            └▶ a line a round: messages, CPU time, softirq, latencies
//
// The CPU time of a message is that of all threads that take part, the kernel's included: what the
// kernel does between the two ends runs in their threads, or in ksoftirqd. So other load of the
// machine counts only for what it does to caches. Latencies and rates are of the clock, and are
// good for a machine at rest.
package express
