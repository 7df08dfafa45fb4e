// Net shows that every request to a server behind HTTP is judged, recorded and
// pinned. It is the network: the resolver, the authority for certificates, the servers
// at public addresses, and at private ones traps that nobody may come to; .ci/shows/4-net
// starts it where all of these addresses are its own. A gatebus that knows nothing of
// this runs in it, with proxies in its environment.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

// patience bounds what a scenario waits for.
const patience = 30 * time.Second

const token = "tok-6b1c93e0aa" // in headers, and in nothing that is kept

func main() {
	bin := flag.String("bin", "", "the program gatebus")
	dir := flag.String("dir", "", "an empty directory to work in")
	size := flag.String("size", "small", "small or full: how often the scenarios of calls are done")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r := &run{rounds: map[string]int{"small": 1, "full": 10}[*size]}
	err := r.show(ctx, *bin, *dir)
	if err == nil && r.failed > 0 {
		err = fmt.Errorf("%d of %d checks do not hold", r.failed, r.checks)
	}
	show.Verdict(err)
}

// run is the show.
type run struct {
	*show.Gatebus
	*network
	rounds         int
	boss           *client.Client
	user           *show.MCP
	checks, failed int
}

// check counts and prints one expectation.
func (r *run) check(ok bool, format string, args ...any) {
	r.checks++
	word := "ok  "
	if !ok {
		r.failed++
		word = "FAIL"
	}
	fmt.Printf("  %s  %s\n", word, fmt.Sprintf(format, args...))
}

// scenario is one server with what is done to it.
type scenario struct {
	name, title string
	url         string // empty: https://NAME.example/mcp
	yaml        string
	do          func(context.Context, *run) error
	// decided are the last decisions on it, or on its hops only: origin, yes or no, and
	// reason.
	decided []string
	hops    bool
}

const declaration = `transport: streamable_http
url: %q
headers: {Authorization: "Bearer ${API_TOKEN}", X-Api-Key: "${API_TOKEN}", Cookie: "sid=${API_TOKEN}"}
approval_policy: auto
risk: low
timeout_seconds: 3
connect_timeout_seconds: 10
%s`

func (r *run) show(ctx context.Context, bin, dir string) (err error) {
	if r.Gatebus, err = show.New(bin, dir); err != nil {
		return err
	}
	roots := filepath.Join(dir, "roots.pem")
	if r.network, err = newNetwork(roots); err != nil {
		return err
	}
	defer r.network.close()
	r.Env = append(r.Env, "SSL_CERT_FILE="+roots, "API_TOKEN="+token)
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		r.Env = append(r.Env, name+"=http://"+proxy, strings.ToLower(name)+"=http://"+proxy)
	}
	for _, s := range scenarios {
		url := s.url
		if url == "" {
			url = "https://" + s.name + ".example/mcp"
		}
		if err := r.Declare(s.name, fmt.Sprintf(declaration, url, s.yaml)); err != nil {
			return err
		}
	}
	bomb() // takes a while
	up, err := r.Up(ctx)
	if err != nil {
		return err
	}
	defer up.Kill()
	if r.boss, err = r.Dial(ctx); err != nil {
		return err
	}
	defer r.boss.Close()
	approving, rest := context.WithCancel(ctx)
	defer rest()
	go func() { _ = show.Approve(approving, r.boss, nil) }() // without it the scenarios fail
	for _, s := range scenarios {
		if err := r.play(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	memory, err := show.Memory(up.PID(), "VmHWM")
	if err != nil {
		return err
	}
	rest()
	if err := r.whole(ctx); err != nil {
		return err
	}
	r.check(memory < 400, "the runtime never had more than %d MiB", memory)
	up.Interrupt()
	code, err := up.Wait(patience)
	r.check(err == nil && code == 0, "it stops in good order: %d, %v", code, err)
	return nil
}

// play plays a scenario and prints what the log has of it and what the servers saw.
func (r *run) play(ctx context.Context, s scenario) error {
	fmt.Printf("== %s\n", s.title)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r.forget()
	// Who may see nothing else connects to nothing else.
	user, err := show.Enrol(ctx, r.boss, "user-of-"+s.name, "mcp.connect:"+s.name, "mcp.call:"+s.name)
	if err != nil {
		return err
	}
	r.user = &show.MCP{URL: r.URL(), Token: user}
	if err := r.user.Initialize(ctx); err != nil {
		return err
	}
	defer r.user.Close()
	if err := s.do(ctx, r); err != nil {
		return err
	}
	out, errs, code := r.CLI(ctx, "audit", "list", "--server", s.name, "--name", "url_decision", "-o", "jsonl")
	if code != 0 {
		return errors.New(errs)
	}
	for line := range strings.Lines(out) {
		var row client.AuditRow
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			return err
		}
		kind, _, _ := strings.Cut(row.Aggregate, "/")
		fmt.Printf("  %d.%d %s %s %s\n", row.Seq, row.I, kind, row.Name, row.Data)
	}
	for _, q := range r.requests() {
		fmt.Println("  saw", q)
	}
	decisions, err := r.decisions(ctx, s.name)
	if err != nil {
		return err
	}
	if s.hops { // other requests go on meanwhile
		decisions = slices.DeleteFunc(decisions, func(d decision) bool { return d.Hop == 0 })
	}
	var got []string
	for _, d := range decisions[max(0, len(decisions)-len(s.decided)):] {
		got = append(got, d.text())
	}
	r.check(slices.Equal(got, s.decided), "the last decisions are %s", strings.Join(got, ", "))
	return nil
}

// decision is a url_decision as the log has it.
type decision struct {
	Server, Phase, Reason, Origin string
	Number, Hop                   int
	Allowed                       bool
	Addresses                     []string
}

func (d decision) text() string {
	word := map[bool]string{true: "yes", false: "no"}[d.Allowed]
	return fmt.Sprintf("%s %s %s", d.Origin, word, d.Reason)
}

// decisions are those on a server, on all of them if it is empty.
func (r *run) decisions(ctx context.Context, server string) (out []decision, err error) {
	rows, err := show.Audit(ctx, r.boss, 0)
	for _, row := range rows {
		if row.Name != "url_decision" || server != "" && row.Server != server {
			continue
		}
		var d decision
		if err := json.Unmarshal(row.Data, &d); err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, err
}

// whole compares all of the log with all that the network saw.
func (r *run) whole(ctx context.Context) error {
	fmt.Println("== all of it")
	decisions, err := r.decisions(ctx, "")
	if err != nil {
		return err
	}
	allowed, asked := map[string]int{}, map[string]int{}
	for _, d := range decisions {
		if d.Allowed && d.Phase == "request" {
			allowed[d.Origin]++
		}
		if host, ok := hostOf(d.Origin); ok {
			asked[host]++
		}
	}
	came, looked, traps := r.totals()
	requests, without, second := 0, 0, 0
	for origin, n := range came {
		requests += n
		without += max(0, n-allowed[origin])
	}
	for host, n := range looked {
		second += max(0, n-asked[host])
	}
	r.check(requests > 20 && without == 0, "%d requests came, %d without a decision", requests, without)
	r.check(second == 0, "%d names were looked up, %d times without a decision", len(looked), second)
	for _, t := range slices.Sorted(maps.Keys(traps)) {
		r.check(traps[t] == 0, "%d connections came to %s", traps[t], t)
	}
	rows, err := show.Audit(ctx, r.boss, 0)
	if err != nil {
		return err
	}
	leaks := 0
	for _, row := range rows {
		if text := string(row.Data); strings.Contains(text, token) || strings.Contains(text, "canary") {
			leaks++
		}
	}
	r.check(leaks == 0, "%d events, %d with a token, a path or a query", len(rows), leaks)
	n, err := r.Rebuilt(ctx)
	r.check(err == nil, "%d projections are what the log makes of them (%v)", n, err)
	return nil
}

// sees lists until a tool is there.
func (r *run) sees(ctx context.Context, tool string) error {
	err := show.Until(ctx, func() (bool, error) {
		tools, err := r.user.Tools(ctx)
		return slices.Contains(tools, tool), err
	})
	if err != nil {
		return fmt.Errorf("%s is not listed: %w", tool, err)
	}
	return nil
}

// call calls a tool and returns the kind of its error, or ok.
func (r *run) call(ctx context.Context, tool string) (string, error) {
	a, err := r.user.Call(ctx, tool, `{}`)
	if err != nil {
		return "", err
	}
	text := string(a.Result) + string(a.Error)
	if strings.Contains(text, `"text":"done"`) {
		return "ok", nil
	}
	var said struct {
		Structured struct{ Code string } `json:"structuredContent"`
	}
	_ = json.Unmarshal(a.Result, &said) // an error of the protocol is told as it is
	if said.Structured.Code != "" {
		return said.Structured.Code, nil
	}
	return text, nil
}

// calls checks what becomes of a call.
func (r *run) calls(ctx context.Context, tool, want string) error {
	got, err := r.call(ctx, tool)
	if err == nil {
		r.check(strings.Contains(got, want), "a call of %s: %.200s", tool, got)
	}
	return err
}
