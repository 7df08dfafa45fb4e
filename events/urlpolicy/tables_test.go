package urlpolicy_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/testdata/urls"
)

const tables = "../../testdata/urls"

// judge is the package as the judge of the tables, with their answers in place of a
// resolver's.
func judge(q urls.Question) (out []urls.Verdict, err error) {
	var p urlpolicy.Policy
	if q.Policy == "private" {
		p = urlpolicy.Private()
	}
	answers := map[string]string{}
	for name, list := range q.Answers {
		t, _ := urlpolicy.Parse("http://" + name + "/")
		answers[t.Host] = list
	}
	for _, raw := range q.URLs {
		t, reason := urlpolicy.Parse(raw)
		v := urls.Verdict{Input: raw, Scheme: t.Scheme, Host: t.Host, Port: int(t.Port)}
		if t.Host != "" {
			v.Origin = t.Origin()
		}
		if reason == urlpolicy.Allowed {
			reason = p.Target(t)
		}
		var addresses []netip.Addr
		if reason == urlpolicy.Allowed {
			if addresses, reason = resolve(answers, t); reason == urlpolicy.Allowed {
				addresses, reason = p.Addresses(t, addresses)
			}
		}
		for _, a := range addresses {
			v.Addresses = append(v.Addresses, a.String())
		}
		v.Allowed, v.Reason = reason == urlpolicy.Allowed, string(reason)
		out = append(out, v)
	}
	return out, nil
}

func resolve(answers map[string]string, t urlpolicy.Target) (out []netip.Addr, _ urlpolicy.Reason) {
	if t.Addr.IsValid() {
		return nil, urlpolicy.Allowed
	}
	list, ok := answers[t.Host]
	switch {
	case list == "!timeout":
		return nil, urlpolicy.DNSTimeout
	case list == "!empty":
		return nil, urlpolicy.Allowed
	case !ok, strings.HasPrefix(list, "!"):
		return nil, urlpolicy.DNSFailure
	}
	for text := range strings.SplitSeq(list, ",") {
		a, _ := netip.ParseAddr(text) // what is none is not valid
		out = append(out, a)
	}
	return out, urlpolicy.Allowed
}

// Every row of the tables: R94, R98 to R109.
func TestEveryRowOfTheTables_R99_R101_R103_R105_R109(t *testing.T) {
	t.Parallel()
	results, err := urls.Check(tables, judge)
	if err != nil {
		t.Fatal(err)
	}
	redirects, err := urls.Redirects(tables)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range append(results, redirects) {
		if r.Rows == 0 {
			t.Errorf("%s has no rows", r.Table)
		}
		for _, failed := range r.Failed {
			t.Errorf("%s: %s", r.Table, failed)
		}
	}
}

// The words of events are those of the table, all of them.
func TestReasonsAreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(tables + "/reasons.tsv")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("urlpolicy.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(string(text)), "\n")[1:]
	for _, row := range rows {
		if reason, _, _ := strings.Cut(row, "\t"); !strings.Contains(string(source), `= "`+reason+`"`) {
			t.Errorf("there is no reason %s", reason)
		}
	}
	if n := strings.Count(string(source), ` Reason = "`); n != len(rows) {
		t.Errorf("%d reasons, the table has %d", n, len(rows))
	}
}
