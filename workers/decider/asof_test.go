package decider_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/internal/rig"
)

// said is what the lists say now, all of them of one moment.
func said(r *rig.Rig) client.AuditState {
	for {
		var s client.AuditState
		var a client.Approvals
		r.Ask("approvals/list", client.ApprovalsList{}, &a)
		s.Approvals, s.Seq = a.Approvals, a.After
		r.Ask("grant/list", nil, &s.Grants)
		r.Ask("mcp/list", nil, &s.Servers)
		r.Ask("tool/list", nil, &s.Tools)
		r.Ask("host/list", nil, &s.Hosts)
		if log := r.Log(); uint64(len(log)) == s.Seq {
			s.Time = log[s.Seq-1].Time
			return s
		}
	}
}

// What audit/asof says of a moment is what the lists said at that moment.
func TestReplayIsWhatTheListsSaid(t *testing.T) {
	t.Parallel()
	r := echo(t, "docs", "zoo")
	var then []client.AuditState
	look := func() { then = append(then, said(r)) }
	look()
	r.Prepare("ana")
	r.AwaitPending(2)
	look()
	r.Decide(r.Pending()[0].ID, true)
	look()
	got := r.Connected("ana")
	look()
	r.Call("ana", got.Turn, "docs__echo", `{"text":"x"}`)
	r.Ask("host/token", client.HostToken{Name: "bob", Role: "auditor"}, nil)
	look()
	r.Ask("grant/revoke", client.Grant{Principal: "ana", Capability: "mcp.call:*"}, nil)
	r.Ask("host/revoke", client.HostRevoke{Name: "bob"}, nil)
	look()
	rest := cmp.Options{cmpopts.IgnoreFields(client.AuditState{}, "Sessions")}
	for _, want := range then {
		var at, when client.AuditState
		r.Ask("audit/asof", client.AuditAsOf{AtSeq: want.Seq}, &at)
		if diff := cmp.Diff(want, at, rest); diff != "" {
			t.Errorf("at %d: %s", want.Seq, diff)
		}
		// Several commits may have one time; then it is the last of them.
		r.Ask("audit/asof", client.AuditAsOf{AtTime: want.Time}, &when)
		if when.Seq < want.Seq || when.Time.After(want.Time) {
			t.Errorf("at the time of %d: %d, %v", want.Seq, when.Seq, when.Time)
		}
	}
	now := said(r)
	for _, p := range []client.AuditAsOf{{}, {AtTime: time.Now().Add(time.Hour)}} {
		var present client.AuditState
		r.Ask("audit/asof", p, &present)
		if diff := cmp.Diff(now, present, rest); diff != "" {
			t.Errorf("the present: %s", diff)
		}
		if len(present.Sessions) != 1 || present.Sessions[0].Principal != "ana" || present.Sessions[0].Calls["succeeded"] != 1 {
			t.Errorf("sessions %+v", present.Sessions)
		}
	}
	var before client.AuditState
	r.Ask("audit/asof", client.AuditAsOf{AtTime: now.Time.Add(-time.Hour)}, &before)
	if before.Seq != 0 || len(before.Grants) != 0 {
		t.Errorf("before the log: %+v", before)
	}
	var all client.AuditState
	r.Ask("audit/asof", client.AuditAsOf{All: true}, &all)
	if len(all.Approvals) != 2 {
		t.Errorf("all approvals: %+v", all.Approvals)
	}
}

func TestReplayOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	for name, p := range map[string]client.AuditAsOf{
		"ahead": {AtSeq: 1000}, "both": {AtSeq: 1, AtTime: time.Now()},
	} {
		if err := r.Local.Do(r.Context(), "audit/asof", p, nil); fault.KindOf(err) != fault.InvalidInput {
			t.Errorf("%s: %v", name, err)
		}
	}
}
