package main

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/workers/fakes"
)

// sample is a line of the text format of Prometheus that has a value.
var sample = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_]\w*="[^"\n]*"\})? (-?[0-9.e+]+|NaN|[+-]Inf)$`)

func TestMetricsAreForWhoMayReadEverything(t *testing.T) {
	t.Parallel()
	a := newAskerAs(t, fmt.Sprintf("command: %q\nargs: [a]\n", fakes.Build(t, "echo")))
	base := strings.TrimSuffix(a.url, "/mcp") + "/metrics"
	get := func(token, hostname string) (int, string) {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			q.Header.Set("Authorization", "Bearer "+token)
		}
		q.Host = hostname
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	ana := a.token("ana")
	var auditor client.HostTokenResult
	a.do("host/token", client.HostToken{Name: "audy", Role: "auditor"}, &auditor)
	for _, c := range []struct {
		token, host string
		want        int
	}{{"", "127.0.0.1", 401}, {"gb_nonsense", "127.0.0.1", 401}, {ana, "127.0.0.1", 403}, {auditor.Token, "evil.example", 403}} {
		if got, body := get(c.token, c.host); got != c.want || strings.Contains(body, "gatebus_") {
			t.Errorf("%+v: %d %s", c, got, body)
		}
	}

	h := a.attach(ana, `{}`)
	h.list()
	approveNext(t, a.op)
	for !strings.Contains(h.list(), `"echo"`) {
	}
	h.call("echo", `{"text":"x"}`)()
	h.call("no-such-tool", `{}`)()
	values := func() map[string]string {
		t.Helper()
		code, text := get(auditor.Token, "127.0.0.1")
		if code != 200 {
			t.Fatalf("%d %s", code, text)
		}
		out, typed := map[string]string{}, map[string]bool{}
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
				typed[strings.Fields(name)[0]] = true
				continue
			}
			if strings.HasPrefix(line, "# HELP ") {
				continue
			}
			m := sample.FindStringSubmatch(line)
			if m == nil || !typed[m[1]] {
				t.Fatalf("no sample: %q", line)
			}
			out[m[1]+m[2]] = m[3]
		}
		return out
	}
	for { // the audit file is written in its own time
		got := values()
		if lag := got[`gatebus_projection_lag_commits{projection="audit"}`]; lag != "0" || got["gatebus_commits_total"] != fmt.Sprint(a.r.bus.Head()) {
			if t.Context().Err() != nil {
				t.Fatalf("it stays behind: %v", got)
			}
			continue
		}
		for name, want := range map[string]string{
			`gatebus_calls_total{status="succeeded"}`: "1", "gatebus_connections_open": "1", "gatebus_approvals_pending": "0", "gatebus_log_up": "1",
			"gatebus_runtimes": "1", `gatebus_projection_lag_commits{projection="memory"}`: "0",
		} {
			if got[name] != want {
				t.Errorf("%s is %s, want %s", name, got[name], want)
			}
		}
		if got["go_goroutines"] == "" || got["gatebus_events_total"] == "" {
			t.Errorf("%v", got)
		}
		break
	}
}
