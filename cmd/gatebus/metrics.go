package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/host"
	"github.com/gatebus/gatebus/workers/httpin"
)

// serveMetrics answers /metrics to who may read everything anyway: operators and
// auditors, by token.
func (r *instance) serveMetrics(w http.ResponseWriter, q *http.Request) {
	if ok, reason := httpin.FromHere(q); !ok {
		http.Error(w, "the "+reason+" header is not allowed", http.StatusForbidden)
		return
	}
	nobody := func(string) (id client.Identity, ok bool) { return id, false }
	id, ok := httpin.Authenticate(w, q, r.decider.Authenticate, nobody)
	if !ok {
		http.Error(w, "a bearer token of an operator or an auditor is needed", http.StatusUnauthorized)
		return
	}
	if role := r.decider.Role(id.Workspace, id.Principal); role != host.RoleOperator && role != host.RoleAuditor {
		http.Error(w, "the role of the principal does not include this", http.StatusForbidden)
		return
	}
	var body bytes.Buffer
	r.writeMetrics(&body)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_ = httpin.Write(w, body.Bytes()) // nobody is left to tell
}

// family is one metric with its samples, by what stands behind its name: labels in
// braces, or nothing.
type family struct {
	name, kind, help string
	samples          map[string]float64
}

// writeMetrics writes what can be counted of this runtime, in the text format of
// Prometheus. No label holds what a principal or a server chose.
func (r *instance) writeMetrics(w io.Writer) {
	one := func(n float64) map[string]float64 { return map[string]float64{"": n} }
	yes := func(b bool) map[string]float64 {
		if b {
			return one(1)
		}
		return one(0)
	}
	label := func(name, value string) string { return "{" + name + "=" + strconv.Quote(value) + "}" }
	head, status := r.bus.Head(), r.projections.Status()
	behind := func(applied uint64) float64 { return float64(max(head, applied) - applied) }
	written, _ := r.audit.Applied() // that it has stopped is seen by its lag
	outcomes := make(map[string]float64)
	for outcome, n := range r.projections.Sessions.Outcomes(r.workspace) {
		outcomes[label("status", outcome)] = float64(n)
	}
	info := r.info()
	all := []family{
		{"gatebus_build_info", "gauge", "The version of the program.", map[string]float64{label("version", info.Version): 1}},
		{"gatebus_commits_total", "counter", "Commits in the log.", one(float64(head))},
		{"gatebus_events_total", "counter", "Events in the log.", one(float64(status.Events))},
		{"gatebus_log_up", "gauge", "Whether the log takes commits.", yes(r.bus.LogErr() == nil && r.bus.Damage() == nil)},
		{"gatebus_calls_total", "counter", "Calls that ended since the log began, by outcome.", outcomes},
		{"gatebus_connections_open", "gauge", "Connections to servers that this process has open.", one(float64(info.Live))},
		{"gatebus_runtimes", "gauge", "Processes of the home that live.", one(float64(len(info.Runtimes)))},
		{"gatebus_approvals_pending", "gauge", "Approvals that wait for a person.", one(float64(len(r.projections.Approvals.Pending(r.workspace))))},
		{"gatebus_projection_lag_commits", "gauge", "Commits that a projection has not applied yet.", map[string]float64{
			label("projection", "memory"): behind(status.Applied), label("projection", "audit"): behind(written),
		}},
		{"process_start_time_seconds", "gauge", "Start of the process, in seconds since 1970.", one(float64(r.started.UnixMilli()) / 1000)},
	}
	for _, f := range append(all, goMetrics()...) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
		for _, labels := range slices.Sorted(maps.Keys(f.samples)) {
			fmt.Fprintf(w, "%s%s %s\n", f.name, labels, strconv.FormatFloat(f.samples[labels], 'g', -1, 64))
		}
	}
}

// goMetrics are those of the Go runtime.
func goMetrics() (all []family) {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(samples)
	value := func(i int) map[string]float64 { return map[string]float64{"": float64(samples[i].Value.Uint64())} }
	return []family{
		{"go_info", "gauge", "The version of Go.", map[string]float64{"{version=" + strconv.Quote(runtime.Version()) + "}": 1}},
		{"go_goroutines", "gauge", "Goroutines that there are.", map[string]float64{"": float64(runtime.NumGoroutine())}},
		{"go_memstats_heap_alloc_bytes", "gauge", "Bytes of the heap in use.", value(0)},
		{"go_memstats_sys_bytes", "gauge", "Bytes that Go has of the system.", value(1)},
		{"go_gc_cycles_total", "counter", "Garbage collections.", value(2)},
	}
}
