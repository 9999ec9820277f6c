package dashboards

// starts selects the cold starts that the variables name.
const starts = `{sandbox=~"$sandbox", netpath=~"$netpath", fastiov=~"$fastiov"}`

func startVariables() []Variable {
	const of = "fastiov_cold_start_seconds_count"
	return []Variable{labelled("sandbox", "sandbox", of), labelled("netpath", "network path", of),
		labelled("fastiov", "FastIOV's flags", of)}
}

func tailLatency() Dashboard {
	const of = "fastiov_cold_start_seconds_count"
	b := newBoard("tail", "fastiov: tail latency",
		"How long calls take that need a sandbox started, where that time goes, and how two versions or two sets of FastIOV's flags compare.",
		append(startVariables(),
			choice("before", "version before", "fastiov_build_info", "version"),
			choice("after", "version after", "fastiov_build_info", "version"),
			choice("flags_before", "flags before", of, "fastiov"),
			choice("flags_after", "flags after", of, "fastiov"))...)

	b.panel(numbers, 12, 4, "s", "Cold starts in this range",
		"Quantiles of the end-to-end time of all cold starts in the range, within the width of a bucket.",
		tail("fastiov_cold_start_seconds", starts, whole, "", "")...)
	b.panel(numbers, 4, 4, "short", "Cold starts",
		"How many cold starts were answered in the range.",
		query{`sum(increase(fastiov_cold_start_seconds_count` + starts +
			`[$__range]))`, "answered"})
	b.panel(numbers, 4, 4, "percentunit", "Share of cold calls",
		"Of the calls that got a sandbox, those that one had to be started or initialised for.",
		query{
			`sum(increase(fastiov_pool_decisions_total{kind=~"cold|prewarm"}[$__range])) / sum(increase(fastiov_pool_decisions_total{kind=~"warm|warming|prewarm|cold"}[$__range]))`,
			"cold",
		})
	b.panel(numbers, 4, 4, "percentunit", "Stage coverage",
		"Median share of a cold start that some stage claims; below 0.95 nobody knows where the time goes.",
		query{`histogram_quantile(0.5, sum by (le) (rate(fastiov_cold_start_coverage_ratio_bucket` +
			starts + `[$__range])))`, "median"})

	b.panel(lines, 12, 9, "s", "End to end",
		"From accepting the request to the last byte of the answer. A dot is one cold start; it leads to its trace.",
		tail("fastiov_cold_start_seconds", starts, window, "", "")...).exemplars()
	b.panel(heat, 12, 9, "s", "End to end, every start", "How many cold starts took how long.",
		query{`sum by (le) (increase(fastiov_cold_start_seconds_bucket` + starts +
			`[$__rate_interval]))`, "{{le}}"})

	b.panel(table, 12, 11, "s", "Stages in this range",
		"Quantiles of what each stage took of a start, each instant given to the innermost stage.",
		tail("fastiov_cold_start_stage_seconds", starts, whole, "stage", "")...).columns("stage")
	b.panel(stacked, 12, 11, "s", "Where the time of an average start goes",
		"Mean time in each stage per cold start; the stages add up to the whole.",
		query{`sum by (stage) (rate(fastiov_cold_start_stage_seconds_sum` + starts +
			`[$__rate_interval])) / ignoring (stage) group_left sum(rate(fastiov_cold_start_seconds_count` +
			starts + `[$__rate_interval]))`, "{{stage}}"})
	for _, q := range quantiles {
		b.panel(lines, 12, 9, "s", "Stages, "+q.name,
			"The "+q.name+" of what each stage takes of a cold start.",
			query{quantile(q.q, "fastiov_cold_start_stage_seconds", starts,
				window, "stage"), "{{stage}}"})
	}

	b.panel(lines, 12, 9, "s", "Cold against warm",
		"Calls by how they got their sandbox: a warm one, one that another call starts, a stem cell, or one started for them.",
		tail("fastiov_activation_seconds", "", window, "start", "{{start}}")...)
	b.panel(stacked, 12, 9, "percentunit", "How calls get their sandbox",
		"Share of each way to a sandbox.",
		query{
			`sum by (kind) (rate(fastiov_pool_decisions_total{kind=~"warm|warming|prewarm|cold"}[$__rate_interval])) / ignoring (kind) group_left sum(rate(fastiov_pool_decisions_total{kind=~"warm|warming|prewarm|cold"}[$__rate_interval]))`,
			"{{kind}}",
		})

	b.panel(bars, 12, 8, "s", "Two versions",
		"The same quantiles of cold starts by two versions of fastiov, over the range.",
		versions()...)
	b.panel(bars, 12, 8, "s", "Two sets of flags",
		"The same quantiles of cold starts with two sets of FastIOV's optimisations, over the range.",
		flagSets()...)
	b.panel(lines, 24, 8, "percentunit", "Stage coverage along the range",
		"Share of a cold start's time that some stage claims: the median, and what all but one of twenty starts reach.",
		query{`histogram_quantile(0.5, sum by (le) (rate(fastiov_cold_start_coverage_ratio_bucket` +
			starts + `[$__rate_interval])))`, "median"},
		query{
			`histogram_quantile(0.05, sum by (le) (rate(fastiov_cold_start_coverage_ratio_bucket` +
				starts + `[$__rate_interval])))`, "p5",
		})
	return b.Dashboard
}

// versions joins the histogram with the version of the process that counts it, piece by piece of
// the range, as a process may be upgraded in it. What was counted in a piece is the version's only
// if the process had it when the piece began, too. Where the data source knows how often Prometheus
// scrapes, pieces overlap, so no start is between two.
func versions() (all []query) {
	for _, q := range quantiles {
		for _, when := range []string{"before", "after"} {
			all = append(all, query{`histogram_quantile(` + q.q + `, sum by (le, version) (sum_over_time((rate(fastiov_cold_start_seconds_bucket` + starts + `[` + window + `])
				* on (instance, job) group_left (version) (fastiov_build_info{version="$` + when + `"} and fastiov_build_info offset ` + window + `))[` + whole + `:$__interval])))`, q.name + " " + when + ": {{version}}"})
		}
	}
	return all
}

func flagSets() (all []query) {
	for _, q := range quantiles {
		for _, when := range []string{"before", "after"} {
			selector := `{sandbox=~"$sandbox", netpath=~"$netpath", fastiov="$flags_` + when + `"}`
			all = append(all, query{
				quantile(q.q, "fastiov_cold_start_seconds", selector, whole, "fastiov"),
				q.name + " " + when + ": {{fastiov}}",
			})
		}
	}
	return all
}
