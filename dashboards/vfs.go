package dashboards

func vfPool() Dashboard {
	b := newBoard("vf-pool", "fastiov: VF pool",
		"The virtual functions of the nodes: how many are ready, what keeps them away, how long resets and leases take.",
		labelled("instance", "node", "fastiov_node_vfs"))
	const on = `{instance=~"$instance"}`

	b.panel(numbers, 24, 4, "short", "VFs now", "Virtual functions by state, now.",
		query{`sum by (state) (fastiov_node_vfs` + on + `)`, "{{state}}"})
	b.panel(stacked, 12, 9, "short", "VFs by state",
		"Each VF is in one state; only idle ones can be leased.",
		query{`sum by (state) (fastiov_node_vfs` + on + `)`, "{{state}}"})
	b.panel(lines, 12, 9, "short", "Starts that wait in the node",
		"By what the first of them waits for; link: there are VFs, on a PF without a carrier.",
		query{`sum by (reason) (fastiov_node_waiting_starts` + on + `)`, "{{reason}}"})

	b.panel(lines, 12, 9, "ops", "Resets", "VFs that were prepared or reset per second.",
		query{`sum by (task, result) (rate(fastiov_node_vf_reset_seconds_count` + on +
			`[$__rate_interval]))`, "{{task}} {{result}}"})
	b.panel(lines, 12, 9, "s", "Time of a reset",
		"Quantiles of how long it takes until a VF that came back is ready again, and until a new one is.",
		tail("fastiov_node_vf_reset_seconds", on, window, "task", "{{task}}")...)
	b.panel(bars, 12, 9, "s", "Leases by age",
		"How long ago each leased VF was leased, the oldest first.",
		query{`sort_desc(max by (instance, vf) (fastiov_node_vf_lease_age_seconds` + on + `))`,
			"{{instance}} {{vf}}"})
	b.panel(table, 12, 9, "short", "VFs that made trouble",
		"Failed resets and errors reported by users of a VF, since the agent started.",
		query{byVF("fastiov_node_vf_reset_failures_total" + on), "failed resets"},
		query{byVF("fastiov_node_vf_faults_total" + on), "errors"}).columns("vf")
	b.panel(lines, 12, 9, "short", "Failed resets",
		"Preparations and resets that failed in the last five minutes, by VF.",
		query{`sum by (instance, vf) (increase(fastiov_node_vf_reset_failures_total` + on +
			`[5m]))`, "{{instance}} {{vf}}"})
	b.panel(lines, 12, 9, "s", "Opening and wiring a VF",
		"The p50 and p99 of the stages that touch the VF, as begun and ended in the node.",
		query{quantile("0.5", "fastiov_node_stage_seconds",
			`{instance=~"$instance", stage=~"cni|4-vfio-dev|5-vf-driver"}`, window, "stage"),
			"p50 {{stage}}"},
		query{quantile("0.99", "fastiov_node_stage_seconds",
			`{instance=~"$instance", stage=~"cni|4-vfio-dev|5-vf-driver"}`, window, "stage"),
			"p99 {{stage}}"})
	return b.Dashboard
}

// byVF sums a series by VF, in one label that a table can join rows by: nodes alike have VFs of the
// same addresses.
func byVF(series string) string {
	return `sum by (vf) (label_join(` + series + `, "vf", " ", "instance", "vf"))`
}
