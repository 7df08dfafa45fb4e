package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/events/urlpolicy"
	"github.com/gatebus/gatebus/workers/httpclient"
)

// urlVerdict is one line of policy url check.
type urlVerdict struct {
	Input     string   `json:"input"`
	Allowed   bool     `json:"allowed"`
	Reason    string   `json:"reason"`
	Scheme    string   `json:"scheme"`
	Host      string   `json:"host"`
	Port      uint16   `json:"port"`
	Origin    string   `json:"origin"`
	Addresses []string `json:"addresses"`
}

func (m *Main) policyURLCommand() *cobra.Command {
	var file, policy string
	var resolve []string
	var offline bool
	check := &cobra.Command{
		Use: "check URL...", Short: "Judge URLs without contacting them",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, urls []string) error {
			j, err := newURLJudge(policy, resolve, offline)
			if err != nil {
				return err
			}
			switch {
			case file == "" && len(urls) == 0:
				return usage("%s: URL is missing", cmd.CommandPath())
			case file != "" && len(urls) > 0:
				return usage("--file and URL exclude each other")
			case file != "":
				if urls, err = m.readURLs(file); err != nil {
					return err
				}
			}
			return m.checkURLs(cmd.Context(), j, urls)
		},
	}
	f := check.Flags()
	f.StringVar(&file, "file", "", "file of URLs, one JSON string a line; - is stdin")
	f.StringVar(&policy, "policy", "default", "default, or private, which trusts private networks")
	f.StringArrayVar(&resolve, "resolve", nil, "answer for a name in place of DNS: NAME=ADDR[,ADDR...], or NAME=!nxdomain, !servfail, !timeout or !empty")
	f.BoolVar(&offline, "offline", false, "ask no resolver; names without --resolve fail")
	cmd := &cobra.Command{Use: "url", Short: "Which URLs may be contacted", Args: cobra.ArbitraryArgs, RunE: group}
	cmd.AddCommand(check)
	return cmd
}

// maxURLLine bounds a line of --file: a URL of the largest size, each byte of it
// escaped.
const maxURLLine = 6*urlpolicy.MaxURL + 64

// readURLs reads JSON strings, one a line. A text that is not UTF-8 stays one that
// the policy refuses.
func (m *Main) readURLs(file string) (urls []string, err error) {
	in := m.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usage("--file: %v", err)
		}
		defer f.Close()
		in = f
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxURLLine)
	for n := 1; lines.Scan(); n++ {
		d := jsontext.NewDecoder(strings.NewReader(lines.Text()), jsontext.AllowInvalidUTF8(true))
		t, err := d.ReadToken()
		if err != nil || t.Kind() != '"' {
			return nil, usage("--file: line %d is no JSON string", n)
		}
		urls = append(urls, t.String())
		if _, err := d.ReadToken(); err != io.EOF {
			return nil, usage("--file: line %d holds more than a JSON string", n)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, usage("--file: after line %d: %v", len(urls), err)
	}
	return urls, nil
}

// checkURLs prints a verdict on each URL, as it is known for formats of lines.
func (m *Main) checkURLs(ctx context.Context, j *urlJudge, urls []string) error {
	verdicts := make([]urlVerdict, 0, len(urls))
	for _, raw := range urls {
		v := j.judge(ctx, raw)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if m.output == "json" || m.output == "jsonl" { // a line each, as the contract has it
			if err := m.encode("jsonl", v); err != nil {
				return err
			}
			continue
		}
		verdicts = append(verdicts, v)
	}
	if m.output == "json" || m.output == "jsonl" {
		return nil
	}
	return printList(m, verdicts, func(v urlVerdict) string { return v.Origin },
		column[urlVerdict]{"ORIGIN", func(v urlVerdict) string { return v.Origin }},
		column[urlVerdict]{"REASON", func(v urlVerdict) string { return v.Reason }},
		column[urlVerdict]{"ADDRESSES", func(v urlVerdict) string { return strings.Join(v.Addresses, " ") }},
	)
}

// urlJudge is the gate of a connection with answers in place of a resolver's, and
// contacts nobody else.
type urlJudge struct {
	gate    httpclient.Gate
	answers map[string]resolution // by name in normal form
}

// resolution is what a resolver says of a name.
type resolution struct {
	addresses []netip.Addr
	err       error
}

var noSuchHost = &net.DNSError{Err: "no such host", IsNotFound: true}

// failures are the words of --resolve.
var failures = map[string]resolution{
	"!nxdomain": {err: noSuchHost}, "!servfail": {err: &net.DNSError{Err: "server misbehaving", IsTemporary: true}},
	"!timeout": {err: &net.DNSError{Err: "i/o timeout", IsTimeout: true}}, "!empty": {},
}

func newURLJudge(policy string, resolve []string, offline bool) (*urlJudge, error) {
	j := &urlJudge{answers: map[string]resolution{}}
	switch policy {
	case "default":
	case "private":
		j.gate.Policy = urlpolicy.Private()
	default:
		return nil, usage("--policy: %q is none of default, private", policy)
	}
	for _, text := range resolve {
		name, answer, found := strings.Cut(text, "=")
		if !found || answer == "" {
			return nil, usage("--resolve: %q is not NAME=ADDR[,ADDR...]", text)
		}
		t, reason := urlpolicy.Parse("http://" + name)
		if reason != urlpolicy.Allowed || strings.ContainsAny(name, "/?#@") {
			return nil, usage("--resolve: %q is no name", name)
		}
		if _, twice := j.answers[t.Question()]; twice {
			return nil, usage("--resolve: %q is given twice", name)
		}
		r, failed := failures[answer]
		if !failed && strings.HasPrefix(answer, "!") {
			return nil, usage("--resolve: %q is none of !nxdomain, !servfail, !timeout, !empty", answer)
		}
		if !failed {
			for a := range strings.SplitSeq(answer, ",") {
				// A resolver may say what is no address: the policy judges that too.
				address, _ := netip.ParseAddr(a)
				r.addresses = append(r.addresses, address)
			}
		}
		j.answers[t.Question()] = r
	}
	ask := httpclient.Lookup
	if offline {
		ask = func(context.Context, string) ([]netip.Addr, error) { return nil, noSuchHost }
	}
	j.gate.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
		if r, ok := j.answers[name]; ok {
			return r.addresses, r.err
		}
		return ask(ctx, name)
	}
	return j, nil
}

func (j *urlJudge) judge(ctx context.Context, raw string) urlVerdict {
	t, _ := urlpolicy.Parse(raw)
	d := j.gate.Judge(ctx, raw)
	v := urlVerdict{Input: raw, Allowed: d.Allowed, Reason: d.Reason, Scheme: t.Scheme, Host: t.Host, Port: t.Port, Addresses: d.Addresses}
	if t.Host != "" {
		v.Origin = d.Origin
	}
	return v
}
