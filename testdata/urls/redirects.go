package urls

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gatebus/gatebus/events/urlpolicy"
)

// Redirects walks the chains of redirects with the policy and the rules of the
// package, and checks the decisions, the end and which requests may carry secrets.
func Redirects(dir string) (Result, error) {
	r := Result{Table: "redirects"}
	rows, err := read(dir, "redirects")
	if err != nil {
		return r, err
	}
	for _, row := range rows {
		id := row[0]
		if id == "userinfo" {
			r.Others = append(r.Others, id+": excluded by userinfo-refuse (decision 24)")
			continue
		}
		r.Rows++
		w, err := newWalk(row)
		if err != nil {
			return r, fmt.Errorf("%s: %w", id, err)
		}
		result := w.run()
		if result != row[10] {
			r.fail(id, "ends with %s, not %s", result, row[10])
		}
		if got, want := fmt.Sprint(w.records), fmt.Sprint(w.expected); got != want {
			r.fail(id, "decisions %s, not %s", got, want)
		}
		for i, absent := range w.absent {
			if i < len(w.kept) && w.kept[i] != (len(absent) == 0) {
				r.fail(id, "request %d: secrets kept is %v", i, w.kept[i])
			}
		}
		if len(w.kept) != len(w.absent) {
			r.fail(id, "%d requests are sent, not %d", len(w.kept), len(w.absent))
		}
	}
	return r, nil
}

// walk is one chain.
type walk struct {
	policy  urlpolicy.Policy
	limit   int
	request struct {
		Method, URL string
		Body        bool
	}
	dns       map[string]json.RawMessage
	responses []struct {
		Status   int
		Location json.RawMessage
	}
	expected [][]any
	absent   [][]string

	lookups map[string]int
	records [][]any
	kept    []bool // of each request that was sent
}

func newWalk(row []string) (*walk, error) {
	w := &walk{lookups: map[string]int{}}
	if row[3] == "private" {
		w.policy = urlpolicy.Private()
	}
	for cell, to := range map[int]any{4: &w.request, 6: &w.dns, 7: &w.responses, 8: &w.limit, 9: &w.expected, 11: &w.absent} {
		if err := json.Unmarshal([]byte(row[cell]), to); err != nil {
			return nil, fmt.Errorf("cell %d: %w", cell, err)
		}
	}
	return w, nil
}

// run walks the chain and says how it ends.
func (w *walk) run() string {
	redirect := urlpolicy.Redirect{Method: w.request.Method, Body: w.request.Body, Limit: w.limit}
	to, reason := urlpolicy.Parse(w.request.URL)
	for i := 0; ; i++ {
		if reason == urlpolicy.Allowed {
			reason = w.judge(to)
		}
		keeps := true
		if i > 0 && reason == urlpolicy.Allowed {
			reason, keeps = redirect.Rule(to), redirect.KeepsSecrets(to)
		}
		w.records = append(w.records, []any{to.Origin(), reason == urlpolicy.Allowed, string(reason)})
		if reason != urlpolicy.Allowed {
			return "error:" + string(reason)
		}
		w.kept = append(w.kept, keeps)
		if i == len(w.responses) {
			return "more requests than answers"
		}
		answer := w.responses[i]
		if !urlpolicy.Followed(answer.Status) {
			return fmt.Sprintf("ok:%d", answer.Status)
		}
		redirect.Chain, redirect.Status = append(redirect.Chain, to), answer.Status
		var locations []string
		if len(answer.Location) > 0 && json.Unmarshal(answer.Location, &locations) != nil {
			var one string
			if err := json.Unmarshal(answer.Location, &one); err != nil {
				return err.Error()
			}
			locations = []string{one}
		}
		if to, reason = redirect.Target(locations); reason == urlpolicy.RedirectMissingLocation {
			return "error:" + string(reason) // no decision of its own
		}
	}
}

func (w *walk) judge(to urlpolicy.Target) urlpolicy.Reason {
	reason := w.policy.Target(to)
	if reason != urlpolicy.Allowed || to.Addr.IsValid() {
		return reason
	}
	var texts []string
	var changing struct{ Seq [][]string }
	switch entry := w.dns[to.Host]; {
	case json.Unmarshal(entry, &texts) == nil:
	case json.Unmarshal(entry, &changing) == nil:
		texts = changing.Seq[min(w.lookups[to.Host], len(changing.Seq)-1)]
		w.lookups[to.Host]++
	default:
		return urlpolicy.DNSFailure
	}
	var answers []netip.Addr
	for _, text := range texts {
		answers = append(answers, netip.MustParseAddr(text))
	}
	_, reason = w.policy.Addresses(to, slices.Clip(answers))
	return reason
}
