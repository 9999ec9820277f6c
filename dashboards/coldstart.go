package dashboards

func oneColdStart() Dashboard {
	b := newBoard("cold-start", "fastiov: one cold start",
		"From a dot above the curve to the waterfall of that one start: click its trace_id, choose a trace in the list, or paste an activation's id, which is its trace's.",
		append(startVariables(),
			Variable{Name: "traces", Label: "traces", Type: "datasource", Query: "jaeger"},
			Variable{Name: "trace", Label: "activation", Type: "textbox", Query: ""})...)
	b.panel(lines, 12, 9, "s", "Cold starts",
		"Quantiles of cold starts; each dot is one of them and leads to its trace.",
		tail("fastiov_cold_start_seconds", starts, window, "", "")...).exemplars()
	b.traces(12, 9, "table", "The last cold starts",
		"The newest traces that are kept; a click on one shows its waterfall.",
		Target{QueryType: "search", Service: "fastiov", Operation: "cold start", Limit: 50})
	b.traces(24, 16, "traces", "The waterfall",
		"One bar for each stage of the start that was chosen, at the times it had on the host's clock.",
		Target{Query: "$trace"})
	b.panel(lines, 24, 9, "s", "Its stages among all others",
		"The p99 of what each stage takes, to tell what was slow about this start.",
		query{quantile("0.99", "fastiov_cold_start_stage_seconds", starts,
			window, "stage"), "{{stage}}"}).exemplars()
	return b.Dashboard
}

// traces adds a panel that queries the store of traces.
func (b *board) traces(w, h int, how, title, about string, q Target) {
	q.RefID, q.Datasource = "A", tracesSource
	p := Panel{
		Type: how, Title: title, Description: about, Datasource: tracesSource, Targets: []Target{q},
		Options: map[string]any{},
	}
	p.FieldConfig = FieldConfig{Defaults: Field{Unit: "none"}, Overrides: []struct{}{}}
	b.place(&p, w, h)
}
