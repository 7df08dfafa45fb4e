// Package urls compares a judge of URLs with the tables beside it, row by row. The
// tests of the policy and a show use it, with the package and with the program as
// the judge.
package urls

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Verdict is one line of "policy url check".
type Verdict struct {
	Input     string   `json:"input"`
	Allowed   bool     `json:"allowed"`
	Reason    string   `json:"reason"`
	Scheme    string   `json:"scheme"`
	Host      string   `json:"host"`
	Port      int      `json:"port"`
	Origin    string   `json:"origin"`
	Addresses []string `json:"addresses"`
}

// Question is URLs to judge under one policy, default or private. Answers are those
// of the resolver, as the flag --resolve takes them: by name, addresses with commas
// or a failure.
type Question struct {
	URLs    []string
	Policy  string
	Answers map[string]string
}

// Judge answers with one Verdict for each URL, in order.
type Judge func(Question) ([]Verdict, error)

// Result is how a table went. Others are rows that say nothing of a single URL,
// with the reason.
type Result struct {
	Table          string
	Rows           int
	Failed, Others []string
}

// result counts rows and keeps what is wrong.
func (r *Result) fail(row, format string, args ...any) {
	r.Failed = append(r.Failed, fmt.Sprintf("%s: %s", row, fmt.Sprintf(format, args...)))
}

// public is an address that every policy allows.
const public = "93.184.216.34"

// Check compares the judge with all tables in dir that hold single URLs.
func Check(dir string, judge Judge) (results []Result, err error) {
	for _, table := range []func(string, Judge) (Result, error){Hosts, URLs, SpecialPurpose, Metadata, DNS, Handed} {
		r, err := table(dir, judge)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Table, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// read is the rows of a table; a missing cell at the end is empty.
func read(dir, table string) (rows [][]string, err error) {
	text, err := os.ReadFile(filepath.Join(dir, table+".tsv"))
	if err != nil {
		return nil, err
	}
	columns := 0
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		cells := strings.Split(lines.Text(), "\t")
		if columns == 0 {
			columns = len(cells)
			continue
		}
		if len(cells) > columns {
			return nil, fmt.Errorf("%q has %d cells, not %d", cells[0], len(cells), columns)
		}
		rows = append(rows, append(cells, make([]string, columns-len(cells))...))
	}
	return rows, lines.Err()
}

// unescape reads a cell that is the body of a JSON string.
func unescape(cell string) (s string, err error) {
	err = json.Unmarshal([]byte(`"`+cell+`"`), &s)
	return s, err
}

// ask asks the judge and wants an answer to each URL.
func ask(judge Judge, q Question) ([]Verdict, error) {
	v, err := judge(q)
	if err == nil && len(v) != len(q.URLs) {
		err = fmt.Errorf("%d answers to %d URLs", len(v), len(q.URLs))
	}
	return v, err
}

// Hosts checks normal forms and verdicts of hosts.
func Hosts(dir string, judge Judge) (Result, error) {
	r := Result{Table: "hosts"}
	classes, err := read(dir, "host_classes")
	if err != nil {
		return r, err
	}
	mayReject := map[string]bool{}
	for _, c := range classes {
		mayReject[c[0]] = c[2] == "yes"
	}
	rows, err := read(dir, "hosts")
	if err != nil {
		return r, err
	}
	q := Question{Policy: "default", Answers: map[string]string{}}
	for _, row := range rows {
		host, err := unescape(row[0])
		if err != nil {
			return r, err
		}
		q.URLs = append(q.URLs, "http://"+host+"/")
		if row[2] == "allow-if-public" && !strings.Contains(row[1], ":") {
			q.Answers[row[1]] = public
		}
	}
	verdicts, err := ask(judge, q)
	if err != nil {
		return r, err
	}
	for i, row := range rows {
		r.Rows++
		v, expected, class := verdicts[i], row[1], row[3]
		rejected := v.Reason == "invalid_url" || v.Reason == "missing_hostname"
		switch {
		case row[2] == "invalid":
			if v.Allowed || !rejected || v.Host != "" {
				r.fail(row[0], "is invalid, not %s with host %q", v.Reason, v.Host)
			}
		case rejected:
			if !mayReject[class] {
				r.fail(row[0], "%s, which class %s may not be", v.Reason, class)
			}
		case v.Host != expected:
			r.fail(row[0], "host %q, not %q", v.Host, expected)
		case v.Allowed != (row[2] == "allow-if-public"):
			r.fail(row[0], "%s, not %s", v.Reason, row[2])
		}
	}
	return r, nil
}

// URLs checks origins and verdicts of whole URLs, and what their views may not show.
func URLs(dir string, judge Judge) (Result, error) {
	r := Result{Table: "urls"}
	rows, err := read(dir, "urls")
	if err != nil {
		return r, err
	}
	q := Question{Policy: "default", Answers: map[string]string{"mcp.example": public}}
	for _, row := range rows {
		u, err := unescape(row[0])
		if err != nil {
			return r, err
		}
		q.URLs = append(q.URLs, u)
	}
	verdicts, err := ask(judge, q)
	if err != nil {
		return r, err
	}
	for i, row := range rows {
		r.Rows++
		v, expected := verdicts[i], unmapped(row[1])
		name := cut(row[0])
		switch {
		case row[2] == "invalid" && (v.Allowed || v.Origin != ""):
			r.fail(name, "is invalid, not %s with origin %q", v.Reason, v.Origin)
		case row[2] != "invalid" && v.Origin != expected:
			r.fail(name, "origin %q, not %q", v.Origin, expected)
		case v.Allowed != (row[2] == "allow-if-public"):
			r.fail(name, "%s, not %s", v.Reason, row[2])
		}
		for secret := range strings.SplitSeq(row[4], ",") {
			if secret, _ = unescape(secret); secret != "" && strings.Contains(fmt.Sprint(v.Reason, v.Scheme, v.Host, v.Origin, v.Addresses), secret) {
				r.fail(name, "its views show %s", secret)
			}
		}
	}
	return r, nil
}

// unmapped is an origin with an address of IPv4 in place of a mapped one, as the
// other tables have it.
func unmapped(origin string) string {
	before, rest, found := strings.Cut(origin, "[")
	host, after, _ := strings.Cut(rest, "]")
	if a, err := netip.ParseAddr(host); found && err == nil && a.Is4In6() {
		return before + a.Unmap().String() + after
	}
	return origin
}

func cut(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}

// literal is the URL of an address.
func literal(a netip.Addr) string {
	if a.Is6() {
		return "http://[" + a.String() + "]/"
	}
	return "http://" + a.String() + "/"
}

// SpecialPurpose checks the first and the last address of each block under both
// policies, and what is embedded in a block.
func SpecialPurpose(dir string, judge Judge) (Result, error) {
	r := Result{Table: "special_purpose"}
	rows, err := read(dir, "special_purpose")
	if err != nil {
		return r, err
	}
	type check struct{ row, want string }
	for column, policy := range map[int]string{5: "default", 6: "private"} {
		q, checks := Question{Policy: policy}, []check(nil)
		add := func(row, want string, a netip.Addr) {
			q.URLs, checks = append(q.URLs, literal(a)), append(checks, check{row, want})
		}
		for _, row := range rows {
			prefix, err := netip.ParsePrefix(row[0])
			if err != nil {
				return r, err
			}
			if want := row[column]; want != "embed" {
				add(row[0], want, netip.MustParseAddr(row[7]))
				add(row[0], want, netip.MustParseAddr(row[8]))
				continue
			}
			private := "block" // behind NAT64 in every policy
			if policy == "private" && strings.HasPrefix(row[0], "::ffff:") {
				private = "allow"
			}
			for at, want := range map[string]string{public: "allow", "10.0.0.1": private, "127.0.0.1": private, "169.254.169.254": "block", "0.0.0.0": "block", "255.255.255.255": "block"} {
				b, inner := prefix.Addr().As16(), netip.MustParseAddr(at).As4()
				copy(b[12:], inner[:])
				add(row[0]+" of "+at, want, netip.AddrFrom16(b))
			}
		}
		verdicts, err := ask(judge, q)
		if err != nil {
			return r, err
		}
		for i, c := range checks {
			if v := verdicts[i]; v.Allowed != (c.want == "allow") {
				r.fail(c.row, "%s under the %s policy is %s, not %s", q.URLs[i], policy, v.Reason, c.want)
			}
		}
	}
	r.Rows = len(rows)
	return r, nil
}

// Metadata checks metadata addresses and names under both policies.
func Metadata(dir string, judge Judge) (Result, error) {
	r := Result{Table: "metadata"}
	rows, err := read(dir, "metadata")
	if err != nil {
		return r, err
	}
	type check struct{ row, want, not string }
	for column, policy := range map[int]string{4: "default", 5: "private"} {
		q, checks := Question{Policy: policy, Answers: map[string]string{}}, []check(nil)
		for _, row := range rows {
			target, c := row[2], check{row: row[0] + " " + row[2], want: row[column]}
			switch row[1] {
			case "port":
				continue
			case "addr":
				q.URLs, checks = append(q.URLs, literal(netip.MustParseAddr(target))), append(checks, c)
				continue
			case "suffix":
				target = "x." + target
			}
			if c.want == "resolve" {
				c.want, q.Answers[target] = "allow", "10.0.0.8"
			} else if c.not = "dns_failure"; target == "x.consul" { // hosts.tsv lets the answer decide
				c.not, q.Answers[target] = "", "10.0.0.8"
			}
			q.URLs, checks = append(q.URLs, "http://"+target+"/"), append(checks, c)
		}
		verdicts, err := ask(judge, q)
		if err != nil {
			return r, err
		}
		for i, c := range checks {
			if v := verdicts[i]; v.Allowed != (c.want == "allow") || v.Reason == c.not {
				r.fail(c.row, "under the %s policy is %s, not %s", policy, v.Reason, c.want)
			}
		}
	}
	for _, row := range rows {
		if row[1] == "port" {
			r.Others = append(r.Others, row[0]+" "+row[2]+": a port, which no rule is about")
			continue
		}
		r.Rows++
	}
	return r, nil
}

// answers is what a resolver says in a row of dns.
type answers struct {
	A, AAAA, Raw, Bytes []string
	Rcode, Error        string
	Delay               int       `json:"delay_ms"`
	LateAAAA            int       `json:"AAAA_delay_ms"`
	Seq                 []answers // one for each look-up
	Requests            int
	Phases              []string
}

// flag is the answers as --resolve takes them. What is no address stays none.
func (a answers) flag() string {
	switch {
	case a.Delay > 0, a.LateAAAA > 0:
		return "!timeout"
	case a.Rcode == "NXDOMAIN":
		return "!nxdomain"
	case a.Rcode != "", a.Error != "":
		return "!servfail"
	}
	all := slices.Concat(a.AAAA, a.A, a.Raw)
	for _, b := range a.Bytes {
		text := "bytes:" + b
		if len(b) == 32 { // net.IP of 16 bytes
			var groups []string
			for g := range slices.Chunk([]byte(b), 4) {
				groups = append(groups, string(g))
			}
			text = strings.Join(groups, ":")
		}
		all = append(all, text)
	}
	if len(all) == 0 {
		return "!empty"
	}
	return strings.Join(all, ",")
}

// DNS checks what follows from the answers of a resolver. Where they change, the
// last look-up counts.
func DNS(dir string, judge Judge) (Result, error) {
	r := Result{Table: "dns"}
	rows, err := read(dir, "dns")
	if err != nil {
		return r, err
	}
	for _, row := range rows {
		id, policy, host := row[0], row[3], row[4]
		var a answers
		if err := json.Unmarshal([]byte(row[5]), &a); err != nil {
			return r, fmt.Errorf("%s: %w", id, err)
		}
		if row[7] == "address_not_validated" {
			r.Others = append(r.Others, id+": what the dialer does, a test of package httpclient")
			continue
		}
		r.Rows++
		changes := len(a.Seq) > 0
		if changes {
			lookups := max(1, a.Requests, len(a.Phases))
			a = a.Seq[min(lookups, len(a.Seq))-1]
		}
		verdicts, err := ask(judge, Question{URLs: []string{"http://" + host + "/"}, Policy: policy, Answers: map[string]string{host: a.flag()}})
		if err != nil {
			return r, fmt.Errorf("%s: %w", id, err)
		}
		v := verdicts[0]
		var dial []string
		if err := json.Unmarshal([]byte(row[8]), &dial); err != nil {
			return r, fmt.Errorf("%s: %w", id, err)
		}
		switch {
		case v.Reason != row[7] || v.Allowed != (row[6] == "allow"):
			r.fail(id, "%s, not %s", v.Reason, row[7])
		case v.Allowed && !changes && !slices.Equal(v.Addresses, dial):
			r.fail(id, "addresses %v, not %v", v.Addresses, dial)
		}
	}
	return r, nil
}

// beyond are the rows of server_urls whose rule is one of a protocol, of which nothing
// fetches or opens the URL.
var beyond = map[string]string{
	"prm-cross": oauth, "prm-http": oauth, "prm-resource": oauth, "as-http": oauth, "as-userinfo": oauth, "as-query": oauth,
	"as-issuer-mismatch": oauth, "token-cross": oauth,
	"authz-shell": "no URL is handed to an opener or a shell",
	"elicit-ok":   "its client asks the person; nothing is fetched",
	"link-res":    "passed on as it is, and never read",
	"website":     "passed on as it is, and never opened",
}

const oauth = "a rule of OAuth, of which no document is fetched"

// Handed checks URLs that a server hands over. A relative one is of the URL that it
// was handed over at.
func Handed(dir string, judge Judge) (Result, error) {
	r := Result{Table: "server_urls"}
	rows, err := read(dir, "server_urls")
	if err != nil {
		return r, err
	}
	q, asked := Question{Policy: "default", Answers: map[string]string{"mcp.a.example": public, "login.example": public}}, [][]string(nil)
	for _, row := range rows {
		if why := beyond[row[0]]; why != "" {
			r.Others = append(r.Others, row[0]+": "+why)
			continue
		}
		value, err := unescape(row[3])
		if err != nil {
			return r, err
		}
		if strings.HasPrefix(value, "/") {
			base, err := url.Parse(row[2])
			if err != nil {
				return r, fmt.Errorf("%s: %w", row[0], err)
			}
			value = base.Scheme + "://" + base.Host + value
		}
		q.URLs, asked = append(q.URLs, value), append(asked, row)
	}
	verdicts, err := ask(judge, q)
	if err != nil {
		return r, err
	}
	for i, row := range asked {
		r.Rows++
		if v := verdicts[i]; v.Reason != row[5] || v.Allowed != (row[4] == "allow") {
			r.fail(row[0], "%s, not %s", v.Reason, row[5])
		}
	}
	return r, nil
}
