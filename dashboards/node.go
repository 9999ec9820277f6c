package dashboards

func node() Dashboard {
	b := newBoard("node", "fastiov: node",
		"What the node agents are asked, how they answer, and what they hold.",
		labelled("instance", "node", "fastiov_node_sandboxes"))
	const on = `{instance=~"$instance"}`

	b.panel(lines, 8, 9, "ops", "Calls", "Calls of the node API per second, by method.",
		query{`sum by (method) (rate(fastiov_node_call_seconds_count` + on +
			`[$__rate_interval]))`, "{{method}}"})
	b.panel(lines, 8, 9, "ops", "Errors",
		"Calls that did not end with OK per second, by method and gRPC status code.",
		query{
			`sum by (method, code) (rate(fastiov_node_call_seconds_count{instance=~"$instance", code!="OK"}[$__rate_interval]))`,
			"{{method}} {{code}}",
		})
	b.panel(lines, 8, 9, "s", "Durations", "The p50 and p99 of calls of the node API, by method.",
		query{quantile("0.5", "fastiov_node_call_seconds", on, window, "method"), "p50 {{method}}"},
		query{quantile("0.99", "fastiov_node_call_seconds", on, window, "method"),
			"p99 {{method}}"})

	b.panel(stacked, 12, 9, "short", "Sandboxes", "Sandboxes on the nodes by state.",
		query{`sum by (state) (fastiov_node_sandboxes` + on + `)`, "{{state}}"})
	b.panel(lines, 12, 9, "short", "Starts that wait",
		"Starts that wait in the node for memory or a VF, by what the first of them waits for.",
		query{`sum by (reason) (fastiov_node_waiting_starts` + on + `)`, "{{reason}}"})
	b.panel(stacked, 12, 9, "bytes", "Memory for sandboxes",
		"What sandboxes have reserved, and what there is left to give out.",
		query{`sum by (state) (fastiov_node_memory_bytes` + on + `)`, "{{state}}"})
	b.panel(lines, 12, 9, "short", "Starts and sandboxes that failed",
		"In the last five minutes: starts refused for want of room, starts that failed, sandboxes that ended by themselves.",
		query{`sum by (reason) (increase(fastiov_node_start_failures_total` + on +
			`[5m]))`, "{{reason}}"},
		query{`sum(increase(fastiov_node_sandbox_deaths_total` + on + `[5m]))`, "died"})

	b.panel(stacked, 12, 9, "pps", "Packets of the bridge",
		"Packets of sandboxes on the bridge per second: express, or why they were regular.",
		query{`sum by (path) (rate(fastiov_node_express_packets_total` + on +
			`[$__rate_interval]))`, "{{path}}"})
	b.panel(lines, 12, 9, "short", "May packets go express",
		"1 where the rules of the node let them, by whether their connection has been answered.",
		query{`fastiov_node_express_permitted` + on, "{{instance}} {{connection}}"})
	b.panel(lines, 12, 9, "s", "Stages in the node, p50",
		"Length of each stage as begun and ended; stages overlap.",
		query{quantile("0.5", "fastiov_node_stage_seconds", on, window, "stage, sandbox"),
			"{{stage}} {{sandbox}}"})
	b.panel(lines, 12, 9, "s", "Stages in the node, p99",
		"Length of each stage as begun and ended; stages overlap.",
		query{quantile("0.99", "fastiov_node_stage_seconds", on, window, "stage, sandbox"),
			"{{stage}} {{sandbox}}"})
	b.panel(lines, 12, 9, "bytes", "Image bytes",
		"Bytes fetched to make images in the last five minutes, by where they came from.",
		query{`sum by (source) (increase(fastiov_node_image_bytes_total` + on +
			`[5m]))`, "{{source}}"})
	b.panel(lines, 12, 9, "short", "Pulls of container images",
		"Pulls that ended in the last five minutes, by how.",
		query{`sum by (result) (increase(fastiov_node_image_pulls_total` + on +
			`[5m]))`, "{{result}}"})
	b.panel(lines, 12, 9, "s", "Pulls and their stages, p50",
		"How long pulls of container images took, and their stages, which overlap.",
		query{quantile("0.5", "fastiov_node_image_pull_seconds", on, window, "stage"),
			"{{stage}}"})
	b.panel(lines, 12, 9, "s", "Pulls and their stages, p99",
		"How long pulls of container images took, and their stages, which overlap.",
		query{quantile("0.99", "fastiov_node_image_pull_seconds", on, window, "stage"),
			"{{stage}}"})
	b.panel(lines, 12, 9, "percentunit", "CPU of the process",
		"Cores that the agent uses, and its invoker, whose page shows both.",
		query{`rate(process_cpu_seconds_total` + on + `[$__rate_interval])`,
			"{{instance}} {{process}}"})
	b.panel(lines, 12, 9, "bytes", "Memory of the process",
		"Resident memory of the agent, and of its invoker.",
		query{`process_resident_memory_bytes` + on, "{{instance}} {{process}}"})
	b.panel(lines, 12, 9, "short", "Goroutines and files", "What leaks show in first.",
		query{`go_goroutines` + on, "goroutines {{instance}} {{process}}"},
		query{`process_open_fds` + on, "open files {{instance}} {{process}}"})
	return b.Dashboard
}
