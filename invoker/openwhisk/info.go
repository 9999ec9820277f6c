package openwhisk

import (
	"net/http"

	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

const base = "/api/v1"

// info describes this endpoint; it needs no key.
func (a *API) info(w http.ResponseWriter, r *http.Request) {
	a.shareWith(w, r)
	answer(w, http.StatusOK, map[string]any{
		"description": "fastiov, an OpenWhisk endpoint", "api_version": "1.0.0",
		"api_version_path": "v1",
		"build":            a.cfg.Version, "buildno": a.cfg.Version,
		"swagger_paths": map[string]string{},
		"api_paths":     []string{base}, "runtimes": a.cfg.Runtimes.Families(),
		"limits": a.limitsInfo(),
	})
}

func (a *API) limitsInfo() map[string]int {
	const mb = 1 << 20
	rates, bounds := a.directory.Defaults(), a.cfg.Bounds
	info := map[string]int{
		"actions_per_minute":  rates.InvocationsPerMinute,
		"triggers_per_minute": rates.FiresPerMinute,
		"concurrent_actions":  rates.ConcurrentInvocations, "sequence_length": entity.MaxComponents,
		"changes_per_minute": rates.ChangesPerMinute, "reads_per_minute": rates.ReadsPerMinute,
		"max_entities": rates.MaxEntities, "max_entity_bytes": rates.MaxEntityMB * mb,
		"max_code_bytes": rates.MaxCodeMB * mb,
	}
	for _, prefix := range []string{"", "default_"} {
		info[prefix+"min_action_duration"], info[prefix+
			"max_action_duration"] = bounds.TimeoutMs.Min, bounds.TimeoutMs.Max
		info[prefix+"min_action_memory"], info[prefix+"max_action_memory"] = bounds.MemoryMB.Min*mb,
			bounds.MemoryMB.Max*mb
		info[prefix+"min_action_logs"], info[prefix+"max_action_logs"] = bounds.LogsMB.Min*mb,
			bounds.LogsMB.Max*mb
	}
	return info
}

func (a *API) listNamespaces(w http.ResponseWriter, _ *http.Request, rq *request) error {
	answer(w, http.StatusOK, []string{rq.user.Namespace})
	return nil
}

// getLimits answers the caller's limits, with those that are the same for everybody.
func (a *API) getLimits(w http.ResponseWriter, _ *http.Request, rq *request) error {
	if _, err := rq.own(); err != nil {
		return err
	}
	rates, bounds := rq.user.Limits, a.bounds(rq.user)
	answer(w, http.StatusOK, map[string]int{
		"invocationsPerMinute":  rates.InvocationsPerMinute,
		"concurrentInvocations": rates.ConcurrentInvocations,
		"firesPerMinute":        rates.FiresPerMinute,
		"changesPerMinute":      rates.ChangesPerMinute, "readsPerMinute": rates.ReadsPerMinute,
		"maxEntities": rates.MaxEntities, "maxEntityMB": rates.MaxEntityMB,
		"maxCodeMB":       rates.MaxCodeMB,
		"minActionMemory": bounds.MemoryMB.Min, "maxActionMemory": bounds.MemoryMB.Max,
		"minActionLogs": bounds.LogsMB.Min, "maxActionLogs": bounds.LogsMB.Max,
		"minActionTimeout": bounds.TimeoutMs.Min, "maxActionTimeout": bounds.TimeoutMs.Max,
		"minActionConcurrency": bounds.Concurrency.Min,
		"maxActionConcurrency": bounds.Concurrency.Max,
		"maxParameterSize":     entity.MaxParameters, "maxPayloadSize": entity.MaxArguments,
	})
	return nil
}
