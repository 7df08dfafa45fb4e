package connector_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

const apiToken = "tok-5f1c9a77e2"

// loopback is what the tests trust.
var loopback = []urlpolicy.Trusted{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}}

// good is a server of the SDK behind HTTP.
type good struct {
	*mcp.Server
	url string

	mu      sync.Mutex
	current http.Handler
	headers []http.Header
	calls   atomic.Int32
}

func newGood(t *testing.T, o *mcp.StreamableHTTPOptions) *good {
	t.Helper()
	g := &good{Server: mcp.NewServer(&mcp.Implementation{Name: "good", Version: "2.1.0"}, nil)}
	g.AddTool(&mcp.Tool{Name: "whoami", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		g.calls.Add(1)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "you are " + r.Extra.Header.Get("Authorization")}}}, nil
	})
	g.restart(o)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.headers = append(g.headers, r.Header.Clone())
		h := g.current
		g.mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	g.url = s.URL
	return g
}

// contacted is how many requests came.
func (g *good) contacted() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.headers)
}

// restart forgets all sessions.
func (g *good) restart(o *mcp.StreamableHTTPOptions) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.current = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return g.Server }, o)
}

// overHTTP declares a server behind HTTP that ana may use.
func overHTTP(t *testing.T, o rig.Options, url string, lines ...string) *rig.Rig {
	t.Helper()
	o.Env = map[string]string{"API_TOKEN": apiToken}
	r := rig.New(t, o)
	r.Declare("docs", append([]string{
		"transport: streamable_http", fmt.Sprintf("url: %q", url), "headers: {Authorization: 'Bearer ${API_TOKEN}'}", "approval_policy: auto",
	}, lines...)...)
	r.Load()
	r.GrantAll("ana")
	return r
}

// requests are the decisions of a phase.
func requests(r *rig.Rig, phase string) (out []events.UrlDecision) {
	for _, d := range rig.Events[events.UrlDecision](r) {
		if d.Phase == phase {
			out = append(out, d)
		}
	}
	return out
}

func TestAServerBehindHTTPIsConnectedAndCalled(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*mcp.StreamableHTTPOptions{"events": nil, "JSON": {JSONResponse: true}, "stateless": {Stateless: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGood(t, o)
			r := overHTTP(t, rig.Options{Trusted: loopback}, g.url+"/mcp?canary=1")

			r.Prepare("ana")
			pending := r.Pending()
			if len(pending) != 1 || !strings.Contains(pending[0].Preview, g.url) || strings.Contains(pending[0].Preview, apiToken) ||
				!strings.Contains(pending[0].Preview, `"Authorization"`) || !strings.Contains(pending[0].Preview, `"allowed":true`) {
				t.Fatalf("the approvals are %+v", pending)
			}
			if g.contacted() > 0 || r.Looked() > 0 {
				t.Error("the server or the environment was asked before the yes")
			}
			r.Decide(pending[0].ID, true)
			turn := r.Prepare("ana")
			protocol := "2025-11-25"
			if o != nil && o.Stateless {
				protocol = "2026-07-28"
			}
			opened := rig.Events[events.ConnectionOpened](r)[0]
			want := events.ConnectionOpened{
				Runtime: r.Runtime, Generation: opened.Generation, Protocol: opened.Protocol, ServerName: opened.ServerName, ServerVersion: opened.ServerVersion,
			}
			if diff := cmp.Diff(want.Program+want.ProgramDigest, opened.Program+opened.ProgramDigest); diff != "" || len(opened.EnvNames) > 0 ||
				opened.ServerName.String() != "good" || opened.ServerVersion.String() != "2.1.0" || opened.Protocol != protocol {
				t.Errorf("opened %+v", opened)
			}

			before := len(r.Log())
			reply := r.Call("ana", turn.Turn, rig.Tool(t, turn, "docs", "whoami").Name, `{}`)
			if reply.Status != call.Succeeded || !strings.Contains(string(reply.Result), "you are ") || strings.Contains(string(reply.Result), apiToken) {
				t.Errorf("%+v %s", reply, reply.Result)
			}
			// Two commits a call, the decision on its request in the one that starts it.
			commits := r.Log()[before:]
			var names []string
			for _, c := range commits {
				names = append(names, strings.Join(c.Names(), " "))
			}
			if diff := cmp.Diff([]string{"call_requested approval_decided call_authorized url_decision call_started", "call_succeeded"}, names); diff != "" {
				t.Error(diff)
			}
			u, _ := url.Parse(g.url)
			for _, d := range rig.Events[events.UrlDecision](r) {
				if !d.Allowed || d.Reason != "allowed" || d.Origin != g.url || !slices.Equal(d.Addresses, []string{u.Hostname()}) || d.Server != "docs" {
					t.Errorf("decision %+v", d)
				}
			}
			if n := len(requests(r, "connect")); n != 1 {
				t.Errorf("%d decisions on the connection", n)
			}
			r.Rebuilt()
			// Each request that came was decided (R96).
			r.Stop()
			g.mu.Lock()
			came := len(g.headers)
			for _, h := range g.headers {
				if h.Get("Authorization") != "Bearer "+apiToken {
					t.Errorf("a request with headers %v", h)
				}
			}
			g.mu.Unlock()
			if n := len(requests(r, "request")); n < came {
				t.Errorf("%d requests came, %d were decided", came, n)
			}
			if r.Stored(apiToken) || r.Stored("canary") {
				t.Error("the token or the path is stored")
			}
		})
	}
}

func TestToolsThatChangeBehindHTTPAreListedAgain(t *testing.T) {
	t.Parallel()
	g := newGood(t, nil)
	r := overHTTP(t, rig.Options{Trusted: loopback}, g.url)
	r.Connected("ana")
	rig.Await(r, func(d events.UrlDecision) bool { return d.Number >= 4 }) // the stream is open, or about to be
	g.AddTool(&mcp.Tool{Name: "second", InputSchema: map[string]any{"type": "object"}}, nil)
	rig.Await(r, func(d events.ToolsDiscovered) bool { return slices.Equal(d.Blocked, []string{"second"}) })
}

// A session that the server has forgotten costs one call, which was not begun; the
// connection is opened again under the same yes.
func TestAnExpiredSessionIsOpenedAgain(t *testing.T) {
	t.Parallel()
	g := newGood(t, nil)
	r := overHTTP(t, rig.Options{Trusted: loopback}, g.url)
	turn := r.Connected("ana")
	name := rig.Tool(t, turn, "docs", "whoami").Name
	g.restart(nil)
	reply := r.Call("ana", turn.Turn, name, `{}`)
	if reply.Status != call.StatusFailed || reply.ExecutionStarted || reply.Error.Kind != string(fault.RuntimeNotLive) {
		t.Errorf("%+v %+v", reply, reply.Error)
	}
	turn = r.Prepare("ana") // at once, and it is another opening
	closed := rig.Await(r, func(events.ConnectionClosed) bool { return true })
	if !strings.Contains(closed.Exit, "session has expired") {
		t.Errorf("closed %+v", closed)
	}
	if reply := r.Call("ana", turn.Turn, name, `{}`); reply.Status != call.Succeeded {
		t.Errorf("%+v %+v", reply, reply.Error)
	}
	if n := g.calls.Load(); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// A server that was open and cannot be opened again at once is tried again soon, and
// without being asked for: whoever lists does not see it.
func TestAConnectionThatWasOpenIsTriedAgainByItself_R167(t *testing.T) {
	t.Parallel()
	g := newGood(t, nil)
	r := overHTTP(t, rig.Options{Trusted: loopback}, g.url)
	turn := r.Connected("ana")
	g.mu.Lock()
	g.current = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	g.mu.Unlock()
	r.Call("ana", turn.Turn, rig.Tool(t, turn, "docs", "whoami").Name, `{}`)
	r.Prepare("ana")
	failed := rig.Await(r, func(events.ServerFailed) bool { return true })
	g.restart(nil)
	rig.Await(r, func(o events.ConnectionOpened) bool { return o.Generation > failed.Generation })
}

func TestAServerThatWantsALoginSaysSo(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, r.Header.Get("Authorization"), http.StatusUnauthorized)
	}))
	t.Cleanup(s.Close)
	r := overHTTP(t, rig.Options{Trusted: loopback}, s.URL)
	r.Connected("ana")
	wantFailed(t, r, "initialize", fault.AuthRequired)
	if r.Stored(apiToken) {
		t.Error("the token is stored")
	}
}

// What may not be contacted is refused before anybody is asked (R94, R101, R103, R105,
// R108, R109).
func TestOnlyPublicAndTrustedPlacesAreContacted(t *testing.T) {
	t.Parallel()
	answers := map[string][]string{
		"inside.example": {"10.1.2.3"}, "mixed.example": {"10.1.2.3", "10.2.0.1"}, "mapped.example": {"::ffff:10.1.2.3"},
		"cloud.example": {"169.254.169.254"}, "public.example": {"93.184.216.34"}, "none.example": {},
	}
	trusted := []urlpolicy.Trusted{
		{Prefix: netip.MustParsePrefix("10.1.0.0/16"), Port: 80}, {Prefix: netip.MustParsePrefix("0.0.0.0/0"), Port: 81},
		{Host: "named.example"}, {Host: "cloud.example"},
	}
	answers["named.example"] = []string{"10.9.9.9"}
	for i := range 40 {
		answers["many.example"] = append(answers["many.example"], fmt.Sprintf("10.1.0.%d", i))
	}
	judged := map[string]string{
		"http://10.1.2.3/": "allowed", "http://10.1.2.3:8080/": "private_address", "http://10.2.0.1/": "private_address",
		"http://inside.example/": "allowed", "http://INSIDE.example./": "allowed", "http://inside.example:8080": "private_address",
		"http://mixed.example/": "private_address", "http://mapped.example/": "allowed", "http://many.example/": "dns_too_many_addresses",
		"https://named.example:8443/": "allowed", "http://cloud.example/": "metadata_address", "http://169.254.169.254:81/": "metadata_address",
		"http://192.0.2.1:81/": "non_routable_address", "http://[::]:81/": "non_routable_address", "http://93.184.216.34:81/": "allowed",
		"http://public.example/": "allowed", "http://none.example/": "dns_no_addresses", "http://unknown.example/": "dns_failure",
		"http://metadata.google.internal/": "metadata_hostname", "http://localhost:9/": "private_hostname",
		"http://2130706433/": "private_address", "http://0x7f.1/": "private_address", "http://127.1/": "private_address", "http://bücher.example/": "dns_failure",
	}
	r := rig.New(t, rig.Options{Trusted: trusted, Resolve: func(_ context.Context, host string) (out []netip.Addr, err error) {
		texts, ok := answers[strings.TrimSuffix(host, ".")]
		if !ok {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		for _, a := range texts {
			out = append(out, netip.MustParseAddr(a))
		}
		return out, nil
	}})
	servers := map[string]string{}
	for at := range judged {
		server := fmt.Sprintf("s%d", len(servers))
		servers[server] = at
		r.Declare(server, "transport: streamable_http", fmt.Sprintf("url: %q", at))
	}
	r.Load()
	r.GrantAll("ana")
	r.Prepare("ana")
	decided := map[string]string{}
	for _, d := range rig.Events[events.UrlDecision](r) {
		if decided[servers[d.Server]] = d.Reason; d.Phase != "connect" || d.Allowed != (d.Reason == "allowed") {
			t.Errorf("decision %+v", d)
		}
	}
	if diff := cmp.Diff(judged, decided); diff != "" {
		t.Error(diff)
	}
	asked := map[string]bool{}
	for _, a := range r.Pending() {
		asked[servers[a.Target]] = true
	}
	for server, at := range servers {
		reason := urlpolicy.Reason(judged[at])
		s := r.Connection("ana", server)
		if asked[at] != (reason == urlpolicy.Allowed) || (s.DeniedStage == connection.StageURL) != (!asked[at] && !reason.Unresolved()) ||
			(s.Phase == connection.Failed) != reason.Unresolved() {
			t.Errorf("%s: asked %v, %+v", at, asked[at], s)
		}
	}
}

// A name that cannot be resolved for a moment is no denial that stays: the connection is
// opened again by itself, under the same yes (R104, R134, R167).
func TestANameThatCannotBeResolvedForAMomentIsAskedForAgain(t *testing.T) {
	t.Parallel()
	g := newGood(t, &mcp.StreamableHTTPOptions{DisableLocalhostProtection: true})
	u, _ := url.Parse(g.url)
	var away atomic.Bool
	r := overHTTP(t, rig.Options{
		Trusted: loopback,
		Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			if away.Load() {
				return nil, &net.DNSError{Err: "server misbehaving", Name: host, IsTemporary: true}
			}
			return []netip.Addr{netip.MustParseAddr(u.Hostname())}, nil
		},
	}, "http://docs.example:"+u.Port()+"/")
	turn := r.Connected("ana")
	g.mu.Lock()
	g.current = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		away.Store(true)
		w.WriteHeader(http.StatusNotFound)
	})
	g.mu.Unlock()
	r.Call("ana", turn.Turn, rig.Tool(t, turn, "docs", "whoami").Name, `{}`)
	closed := rig.Await(r, func(events.ConnectionClosed) bool { return true })
	r.Prepare("ana")
	failed := rig.Await(r, func(events.ServerFailed) bool { return true })
	if failed.Stage != connection.StageURL || failed.Kind != string(fault.URLBlocked) || !strings.Contains(failed.Message.String(), "dns_failure") {
		t.Errorf("failed %+v", failed)
	}
	g.restart(&mcp.StreamableHTTPOptions{DisableLocalhostProtection: true})
	away.Store(false)
	rig.Await(r, func(o events.ConnectionOpened) bool { return o.Generation > closed.Generation })
	if pending := r.Pending(); len(pending) > 0 || len(rig.Events[events.ServerDenied](r)) > 0 {
		t.Errorf("somebody is asked again, or said no: %+v", pending)
	}
}

// Report 50: the answer of the resolver changes after the consent. What is dialled
// is what was checked for this very connection.
func TestAnAnswerThatChangesAfterTheConsentIsRefused(t *testing.T) {
	t.Parallel()
	g := newGood(t, nil)
	u, _ := url.Parse(g.url)
	port, _ := strconv.ParseUint(u.Port(), 10, 16)
	var asked atomic.Int32
	var turnsBad atomic.Int32
	turnsBad.Store(1000)
	r := overHTTP(t, rig.Options{
		Trusted: []urlpolicy.Trusted{{Prefix: netip.MustParsePrefix("127.0.0.0/8"), Port: uint16(port)}},
		Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			if host != "docs.example." {
				return nil, errors.New(host)
			}
			if asked.Add(1) > turnsBad.Load() {
				return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
			}
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		},
	}, "http://docs.example:"+u.Port()+"/")
	r.Prepare("ana")
	turnsBad.Store(asked.Load())
	r.Decide(r.Pending()[0].ID, true)
	r.Prepare("ana")
	wantFailed(t, r, "initialize", fault.URLBlocked)
	ds := requests(r, "request")
	if len(ds) != 1 || ds[0].Allowed || ds[0].Reason != "private_address" || !slices.Equal(ds[0].Addresses, []string{"10.0.0.1"}) {
		t.Errorf("decisions %+v", ds)
	}
	if g.contacted() > 0 {
		t.Error("the server was contacted")
	}
}

// Each call is decided on with a fresh answer of the resolver, in the commit that
// starts it or does not (R95, R96).
func TestEachCallIsDecidedOnAfresh_R95_R96(t *testing.T) {
	t.Parallel()
	g := newGood(t, &mcp.StreamableHTTPOptions{DisableLocalhostProtection: true})
	u, _ := url.Parse(g.url)
	var inside atomic.Bool
	var dialled atomic.Int32
	r := overHTTP(t, rig.Options{
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			if inside.Load() {
				return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
			}
			return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
		},
		Dial: func(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
			dialled.Add(1)
			if at != netip.MustParseAddrPort("93.184.216.34:80") {
				t.Errorf("dialled %s", at)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
		},
	}, "http://docs.example/")
	turn := r.Connected("ana")
	name := rig.Tool(t, turn, "docs", "whoami").Name
	calls := func(want ...string) client.CallReply {
		t.Helper()
		before := len(r.Log())
		reply := r.Call("ana", turn.Turn, name, `{}`)
		var names []string
		for _, c := range r.Log()[before:] {
			if c.Aggregate.Kind == events.KindCall {
				names = append(names, strings.Join(c.Names(), " "))
			}
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Error(diff)
		}
		return reply
	}
	started := "call_requested approval_decided call_authorized url_decision call_started"
	calls(started, "call_succeeded")
	came := g.contacted()
	inside.Store(true)
	reply := calls("call_requested approval_decided url_decision call_blocked")
	if reply.ExecutionStarted || reply.Error.Kind != string(fault.URLBlocked) || !strings.Contains(reply.Error.Message, "private_address") {
		t.Errorf("%+v %+v", reply, reply.Error)
	}
	if n := g.contacted(); n != came || g.calls.Load() != 1 {
		t.Errorf("the server got %d requests more", n-came)
	}
	inside.Store(false)
	calls(started, "call_succeeded")
	r.Rebuilt()
}
