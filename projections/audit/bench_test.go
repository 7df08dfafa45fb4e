package audit_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/projections/audit"
	"github.com/gatebus/gatebus/projections/internal/memlog"
)

// BenchmarkCalls writes the two commits of a call, as most of a log is, with others.
func BenchmarkCalls(b *testing.B) {
	const calls = 4000
	log := memlog.Of()
	for i := range calls {
		call := fmt.Sprintf("k-01JDWX5Z8Q7N3R2T4V%08d", i)
		c := of(events.KindCall, call)
		c.Command, c.Correlation, c.Actor, c.Time = fmt.Sprintf("01JDWX5Z8Q7N3R2T5V%08d", i), call, "ana", noon.Add(time.Duration(i)*time.Millisecond)
		c.Scope = events.Scope{
			Session: "s-01JDWX5Z8Q7N3R2T6V00000001", Turn: "t-01JDWX5Z8Q7N3R2T7V00000001",
			Connection: "c-01JDWX5Z8Q7N3R2T8V00000001", Call: call, Server: "echo",
		}
		first, last := c, c
		first.Events = []events.Event{
			events.CallRequested{
				Session: c.Scope.Session, Turn: c.Scope.Turn, Connection: c.Scope.Connection, Server: "echo", Tool: "echo", Callable: "echo__echo",
				Fingerprint: fmt.Sprintf("%064d", 1), DefinitionDigest: fmt.Sprintf("%064d", 2), Capability: "mcp.call:echo", Risk: "medium",
				Policy: "auto", ArgumentKeys: []string{"text"}, ArgumentDigest: fmt.Sprintf("%064d", i), ArgumentBytes: 111,
				Arguments: redact.Static(`{"text":"<string length:100>"}`),
			},
			events.ApprovalDecided{Decision: "allow", Kind: "once", By: "policy", Automatic: true},
			events.CallAuthorized{Capability: "mcp.call:echo", Policy: "auto", AuthoritySequence: 5, PolicySequence: 3, CatalogSequence: 14},
			events.CallStarted{Runtime: "r-01JDWX5Z8Q7N3R2T8V00000001", Connection: c.Scope.Connection, Generation: 12, TimeoutMs: 60000},
		}
		last.Command = fmt.Sprintf("01JDWX5Z8Q7N3R2T9V%08d", i)
		last.Events = []events.Event{events.CallSucceeded{Status: "succeeded", DurationMs: 1, Bytes: 140, Result: redact.Static("<redacted:argument:text>")}}
		log.Add(&first)
		log.Add(&last)
	}
	b.ReportAllocs()
	for b.Loop() {
		p := audit.New(audit.Options{Path: filepath.Join(b.TempDir(), "audit.db")})
		ctx, cancel := context.WithCancel(b.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = p.Run(ctx, log) }) // Wait tells why it ended
		if err := p.Wait(b.Context(), log.Head()); err != nil {
			b.Fatal(err)
		}
		cancel()
		run.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*calls), "us/call")
}
