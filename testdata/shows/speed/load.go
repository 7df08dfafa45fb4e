package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// bearer sends a token with each request, also to who does not want one.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// dial connects the client that calls everybody.
func dial(ctx context.Context, e era, url, token string) (*mcp.ClientSession, error) {
	c := mcp.NewClient(&mcp.Implementation{Name: "speed", Version: "1"}, nil)
	return c.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: url, DisableStandaloneSSE: true,
		HTTPClient: &http.Client{Transport: bearer{token, &http.Transport{MaxIdleConnsPerHost: 32}}},
	}, &mcp.ClientSessionOptions{ProtocolVersion: string(e)})
}

// way is a way to the echo server.
type way struct {
	name    string
	tool    string
	pid     int // whose CPU is counted; 0 for nobody's
	session *mcp.ClientSession
	is      kind
	// settled returns when all is done that calls leave to be done; nil for nothing.
	settled func(context.Context) error
}

// kind says what a way is measured against.
type kind struct {
	gatebus bool
	behind  string // stdio or http; empty for direct
}

// sample is what was measured in one turn of a way.
type sample struct {
	calls   int
	took    time.Duration
	cpu     time.Duration // of the process of the way, until it is settled
	latency []time.Duration
}

func (s sample) rate() float64 { return float64(s.calls) / s.took.Seconds() }

// load calls from some callers for a while; each answer must be what was said.
func (w *way) load(ctx context.Context, callers, size int, d time.Duration) (s sample, err error) {
	text := strings.Repeat("x", size)
	arguments := map[string]string{"text": text}
	var mu sync.Mutex
	var all sync.WaitGroup
	cpu, began := cpuOf(w.pid), time.Now()
	for range callers {
		all.Go(func() {
			var latency []time.Duration
			var failed error
			for last := began; failed == nil && last.Sub(began) < d; {
				failed = w.once(ctx, arguments, text)
				now := time.Now()
				latency = append(latency, now.Sub(last))
				last = now
			}
			mu.Lock()
			defer mu.Unlock()
			s.latency = append(s.latency, latency...)
			if failed != nil {
				err = failed
			}
		})
	}
	all.Wait()
	s.took, s.calls = time.Since(began), len(s.latency)
	if err == nil && w.settled != nil {
		err = w.settled(ctx)
	}
	s.cpu = cpuOf(w.pid) - cpu
	return s, err
}

func (w *way) once(ctx context.Context, arguments map[string]string, want string) error {
	r, err := w.session.CallTool(ctx, &mcp.CallToolParams{Name: w.tool, Arguments: arguments})
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	if len(r.Content) == 1 {
		if got, ok := r.Content[0].(*mcp.TextContent); ok && got.Text == want && !r.IsError {
			return nil
		}
	}
	return fmt.Errorf("%s: the answer is %+v", w.name, r)
}

// list lists all tools, and returns how many and how long it took.
func list(ctx context.Context, s *mcp.ClientSession) (tools int, took time.Duration, err error) {
	began := time.Now()
	for _, err := range s.Tools(ctx, nil) {
		if err != nil {
			return 0, 0, err
		}
		tools++
	}
	return tools, time.Since(began), nil
}

// tick is the unit of CPU time in /proc (USER_HZ).
const tick = 10 * time.Millisecond

// cpuOf is what a process has used, in user and in system mode.
func cpuOf(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// pid (name) state and ten more, then utime and stime.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * tick
}

// quantile is a value of a sorted list.
func quantile[T any](sorted []T, q float64) (v T) {
	if len(sorted) == 0 {
		return v
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func median(values []float64) float64 {
	slices.Sort(values)
	if n := len(values); n > 0 && n%2 == 0 {
		return (values[n/2-1] + values[n/2]) / 2
	}
	return quantile(values, 0.5)
}
