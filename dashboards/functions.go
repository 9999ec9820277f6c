package dashboards

func functions() Dashboard {
	b := newBoard("functions", "fastiov: functions",
		"What is called, how it ends, how long it takes, and what is refused.",
		labelled("function", "function", "fastiov_activations_total"))
	const of = `{function=~"$function"}`

	b.panel(lines, 12, 9, "ops", "Activations", "Activations per second by function.",
		query{`sum by (function) (rate(fastiov_activations_total` + of +
			`[$__rate_interval]))`, "{{function}}"})
	b.panel(stacked, 12, 9, "ops", "Activations by how they ended",
		"application error: the function says so; action developer error: it could not be run; whisk internal error: our fault; refused: there was no room.",
		query{`sum by (status) (rate(fastiov_activations_total` + of +
			`[$__rate_interval]))`, "{{status}}"})
	b.panel(lines, 12, 9, "s", "Duration, p50",
		"From accepting the call to the last byte of its answer, by function.",
		query{quantile("0.5", "fastiov_activation_seconds", of, window, "function"),
			"{{function}}"})
	b.panel(lines, 12, 9, "s", "Duration, p99",
		"From accepting the call to the last byte of its answer, by function. A dot is one cold start.",
		query{quantile("0.99", "fastiov_activation_seconds", of, window, "function"),
			"{{function}}"}).exemplars()

	b.panel(table, 24, 10, "s", "Functions in this range",
		"Quantiles of the duration of each function's activations.",
		tail("fastiov_activation_seconds", of, whole, "function", "")...).columns("function")
	b.panel(bars, 12, 9, "percentunit", "Share of cold calls",
		"Of the calls of a function that ran, those that a sandbox was started or a stem cell initialised for.",
		query{
			`sum by (function) (increase(fastiov_activation_seconds_count{function=~"$function", start=~"cold|prewarm"}[$__range])) / sum by (function) (increase(fastiov_activation_seconds_count` +
				of + `[$__range]) > 0)`,
			"{{function}}",
		})
	b.panel(bars, 12, 9, "percentunit", "Share that did not succeed",
		"Activations of a function that ended otherwise than with success.",
		query{
			`sum by (function) (increase(fastiov_activations_total{function=~"$function", status!="success"}[$__range])) / (sum by (function) (increase(fastiov_activations_total` +
				of + `[$__range])) > 0)`,
			"{{function}}",
		})

	b.panel(stacked, 12, 9, "short", "Calls that wait for a sandbox",
		"In the invoker, by what they wait for.",
		query{`sum by (reason) (fastiov_pool_waiting_jobs)`, "{{reason}}"})
	b.panel(lines, 12, 9, "ops", "Throttled requests",
		"Requests refused with 429 or 413 per second, by the limit that they met.",
		query{`sum by (limit) (rate(fastiov_throttled_requests_total[$__rate_interval]))`,
			"{{limit}}"})
	b.panel(stacked, 12, 9, "short", "Sandboxes by phase",
		"As the invoker sees them, on all nodes.",
		query{`sum by (phase) (fastiov_pool_sandboxes)`, "{{phase}}"})
	b.panel(lines, 12, 9, "ops", "Decisions of the pool", "What the pool does per second, by kind.",
		query{`sum by (kind) (rate(fastiov_pool_decisions_total[$__rate_interval]))`, "{{kind}}"})
	b.panel(lines, 24, 7, "short", "Nodes", "Nodes of this invoker by state; away: out of reach.",
		query{`sum by (state) (fastiov_pool_nodes)`, "{{state}}"})
	b.panel(lines, 12, 9, "short", "Activations in a cluster",
		"Of an invoker with --bus: under way, room for them, and what waits in its topic.",
		query{`sum by (instance) (fastiov_bus_running_activations)`, "under way {{instance}}"},
		query{`sum by (instance) (fastiov_bus_offered_slots)`, "room {{instance}}"},
		query{`sum by (instance) (fastiov_bus_waiting_messages)`, "in Kafka {{instance}}"})
	b.panel(lines, 12, 9, "short", "Lost in a cluster",
		"Of an invoker with --bus, in the last five minutes: acknowledgements and activation records.",
		query{`sum by (instance) (increase(fastiov_bus_lost_acks_total[5m]))`,
			"acknowledgements {{instance}}"},
		query{`sum by (instance) (increase(fastiov_bus_lost_records_total[5m]))`,
			"records {{instance}}"})
	return b.Dashboard
}
