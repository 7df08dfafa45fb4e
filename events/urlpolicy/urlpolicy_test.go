package urlpolicy

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func mustParse(t testing.TB, raw string) Target {
	t.Helper()
	target, reason := Parse(raw)
	if reason != Allowed {
		t.Fatalf("%q: %s", raw, reason)
	}
	return target
}

func addresses(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func TestParseSaysWhatIsRequested_R99_R113(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]struct{ origin, url string }{
		"HTTPS://Bücher.Example.:0443?q=1#f":   {"https://xn--bcher-kva.example", "https://xn--bcher-kva.example/?q=1"},
		"http://u:p@[::FFFF:a00:1]:8080/a?":    {"http://10.0.0.1:8080", "http://10.0.0.1:8080/a?"},
		"http://[2001:DB8::1]:80//x/%7e/../ü":  {"http://[2001:db8::1]", "http://[2001:db8::1]//x/%7e/../%C3%BC"},
		"https://a.example/<a>{b}|^`\"?\"c\"#": {"https://a.example", "https://a.example/%3Ca%3E%7Bb%7D%7C%5E%60%22?%22c%22"},
		"https://a.example/a;b='(c)'!*,$&+@:=": {"https://a.example", "https://a.example/a;b='(c)'!*,$&+@:="},
	} {
		target := mustParse(t, raw)
		if target.Origin() != want.origin || target.URL().String() != want.url || target.text() != want.url {
			t.Errorf("%q: origin %s, URL %s, text %s", raw, target.Origin(), target.URL(), target.text())
		}
		if shown := fmt.Sprintf("%v %+v %#v %s", target, target, target, target); shown != strings.TrimSuffix(strings.Repeat(want.origin+" ", 4), " ") {
			t.Errorf("%q is shown as %s", raw, shown)
		}
	}
}

func TestQuestionsAreAbsoluteButForNamesOfHostsFiles_R103(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{"http://kubernetes.default": "kubernetes.default.", "http://a.example.": "a.example.", "http://localhost.": "localhost"} {
		if got := mustParse(t, raw).Question(); got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
}

func TestParseRefusesWhatParsersDisagreeOn_R107(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]Reason{
		"https://x.example.xn--/":                          InvalidURL, // the label would vanish
		"https://x.example.xn--./":                         InvalidURL,
		"https://xn--.x.example/":                          InvalidURL,
		"https://ẞ.example/":                               InvalidURL,
		"https://x.example/\xff":                           InvalidURL,
		"https://x.example/%f":                             InvalidURL,
		"https://x.example/�":                              InvalidURL,
		"https://a%b@x.example/":                           InvalidURL,
		"https://x.example:65536/":                         InvalidURL,
		"https://x.example:1:2/":                           InvalidURL,
		"https://[::1]x.example/":                          InvalidURL,
		"https:////x.example/":                             InvalidURL,
		"https://@/":                                       MissingHostname,
		"https://":                                         MissingHostname,
		"Secret-token-of-somebody:x":                       UnsupportedScheme,
		"A" + strings.Repeat("b", maxScheme) + ":x":        InvalidURL,
		"https://x.example/" + strings.Repeat("a", MaxURL): InvalidURL,
		"https://" + strings.Repeat("\u00ad", maxHost) + "x.example/": InvalidURL,
	} {
		target, reason := Parse(raw)
		if reason != want || target.Host != "" || target.Port != 0 {
			t.Errorf("%.80q: %s with %#v, want %s", raw, reason, target, want)
		}
	}
}

// What the operator trusts is trusted on that port only, and nothing of it opens
// what stays refused (R108, R109).
func TestTrustedPlaces_R108_R109(t *testing.T) {
	t.Parallel()
	p := Policy{Trusted: []Trusted{
		{Prefix: netip.MustParsePrefix("10.1.0.0/16"), Port: 80}, {Prefix: netip.MustParsePrefix("0.0.0.0/0"), Port: 81},
		{Prefix: netip.MustParsePrefix("::/0"), Port: 81}, {Host: "db.internal"}, {Host: "redis", Port: 6379}, {Host: "metadata"},
	}}
	for raw, want := range map[string]Reason{
		"http://10.1.2.3/": Allowed, "http://10.1.2.3:8080/": PrivateAddress, "http://10.2.0.1/": PrivateAddress,
		"http://10.2.0.1:81/": Allowed, "http://[::1]:81/": Allowed, "http://[::ffff:7f00:1]:81": Allowed,
		"http://169.254.169.254:81/": MetadataAddress, "http://169.254.1.1:81/": LinkLocalAddress, "http://[fe80::1]:81/": LinkLocalAddress,
		"http://[fd00:ec2::1]:81/": MetadataAddress, "http://100.100.100.200:81/": MetadataAddress, "http://0.0.0.0:81/": NonRoutableAddress,
		"http://224.0.0.1:81/": NonRoutableAddress, "http://240.0.0.1:81/": NonRoutableAddress, "http://192.0.2.1:81/": NonRoutableAddress,
		"http://[64:ff9b::a00:1]:81/": PrivateAddress, "http://[4000::1]:81": NonRoutableAddress,
		"http://db.internal:9/": Allowed, "http://x.internal:9/": PrivateHostname, "http://x.internal:81/": Allowed,
		"http://redis:6379/": Allowed, "http://redis:6380/": SingleLabelHostname, "http://metadata/": MetadataHostname,
		"http://93.184.216.34/": Allowed, "http://public.example/": Allowed,
	} {
		if got := p.Target(mustParse(t, raw)); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
	for raw, want := range map[string]Reason{
		"http://db.internal/": Allowed, "http://x.internal:80/": PrivateAddress, "http://x.example/": PrivateAddress,
	} {
		if _, got := p.Addresses(mustParse(t, raw), addresses("10.9.9.9")); got != want {
			t.Errorf("%s at 10.9.9.9: %s, want %s", raw, got, want)
		}
	}
	if _, got := p.Addresses(mustParse(t, "http://db.internal/"), addresses("10.9.9.9", "169.254.169.254")); got != MetadataAddress {
		t.Errorf("a trusted name at a metadata address: %s", got)
	}
	if p.ID() != "private" || (Policy{}).ID() != "default" {
		t.Errorf("%s, %s", p.ID(), (Policy{}).ID())
	}
}

// The reason is that of the first bad answer; mapped addresses are what they map
// to, and duplicates are one (R102, R103).
func TestAddressesAreJudgedTogether_R102_R103(t *testing.T) {
	t.Parallel()
	target := mustParse(t, "https://x.example/")
	for _, test := range []struct {
		answers []string
		judged  []string
		reason  Reason
	}{
		{[]string{"1.1.1.1", "::ffff:1.1.1.1", "2606:4700::1111", "1.0.0.1"}, []string{"2606:4700::1111", "1.1.1.1", "1.0.0.1"}, Allowed},
		{[]string{"1.1.1.1", "10.0.0.1", "169.254.169.254"}, []string{"1.1.1.1", "10.0.0.1", "169.254.169.254"}, PrivateAddress},
		{[]string{"1.1.1.1", "fe80::1%eth0"}, nil, DNSInvalidAddress},
	} {
		judged, reason := Policy{}.Addresses(target, addresses(test.answers...))
		if reason != test.reason || !slices.Equal(judged, addresses(test.judged...)) {
			t.Errorf("%v: %v, %s", test.answers, judged, reason)
		}
	}
	if judged, reason := (Policy{}).Addresses(mustParse(t, "https://10.0.0.1/"), addresses("1.1.1.1")); reason != PrivateAddress {
		t.Errorf("other answers for an address: %v, %s", judged, reason)
	}
}

// The table is dated, and says of each address one thing whatever order it is in.
func TestBlocksAreDatedAndEachIsThereOnce_R105(t *testing.T) {
	t.Parallel()
	if TableDate != "2026-07-18" {
		t.Errorf("the table is of %s: testdata/urls/special_purpose.tsv is not", TableDate)
	}
	seen := map[netip.Prefix]bool{}
	for _, b := range blocks {
		if seen[b.prefix] || b.prefix != b.prefix.Masked() {
			t.Errorf("%s is there twice, or has bits behind its length", b.prefix)
		}
		seen[b.prefix] = true
	}
}

func TestLocationsAreRelativeToTheLastRequest_R98(t *testing.T) {
	t.Parallel()
	r := Redirect{Chain: []Target{mustParse(t, "https://first.example/"), mustParse(t, "https://a.example:8443/x/y?q=1")}}
	for location, want := range map[string]string{
		"z": "https://a.example:8443/x/z", "/z?": "https://a.example:8443/z?", "?q=2": "https://a.example:8443/x/y?q=2",
		"#f": "https://a.example:8443/x/y?q=1", "../../../z": "https://a.example:8443/z", "//b.example/z": "https://b.example/z",
		"http://c.example": "http://c.example/", "z/ü": "https://a.example:8443/x/z/%C3%BC", "./z:1": "https://a.example:8443/x/z:1",
	} {
		if target, reason := r.Target([]string{location}); reason != Allowed || target.URL().String() != want {
			t.Errorf("%q: %s, %s", location, target.URL(), reason)
		}
	}
	for location, want := range map[string]Reason{
		"": RedirectMissingLocation, "///b.example/": InvalidURL, `\\b.example\`: InvalidURL, `/\b.example`: InvalidURL,
		"/a b": InvalidURL, "/\xff": InvalidURL, "z:1": UnsupportedScheme, "https:/b.example": InvalidURL, "//": MissingHostname,
		"1:z": InvalidURL, strings.Repeat("a", MaxURL+1): InvalidURL,
	} {
		if target, reason := r.Target([]string{location}); reason != want {
			t.Errorf("%.60q: %s %s, want %s", location, reason, target.URL(), want)
		}
	}
	if _, reason := r.Target([]string{"/a", "/b"}); reason != InvalidURL {
		t.Errorf("two places: %s", reason)
	}
	if _, reason := r.Target([]string{"/a", "/a"}); reason != Allowed {
		t.Errorf("one place twice: %s", reason)
	}
}

func TestRulesOfRedirects_R98(t *testing.T) {
	t.Parallel()
	a, other := "https://a.example/1", "https://b.example/"
	for _, test := range []struct {
		to, method string
		status     int
		body       bool
		want       Reason
	}{
		{"https://a.example/2", "GET", 302, false, Allowed},
		{"https://a.example/2", "POST", 307, true, Allowed},
		{other, "GET", 301, false, Allowed},
		{other, "DELETE", 308, false, Allowed},
		{other, "POST", 308, true, RedirectBodyCrossOrigin},
		{other, "POST", 302, true, RedirectMethodRewrite},
		{"https://a.example/2", "DELETE", 303, false, RedirectMethodRewrite},
		{"https://u@b.example/", "POST", 307, true, UserinfoNotAllowed},
		{"http://u@a.example/", "GET", 307, false, RedirectDowngrade},
		{a + "#again", "POST", 303, true, RedirectLoop},
	} {
		r := Redirect{Chain: []Target{mustParse(t, a)}, Status: test.status, Method: test.method, Body: test.body, Limit: MaxRedirects}
		if got := r.Rule(mustParse(t, test.to)); got != test.want {
			t.Errorf("%d of a %s to %s: %s, want %s", test.status, test.method, test.to, got, test.want)
		}
	}
}

// What went to another origin does not get the secrets back where it comes from.
func TestSecretsStayWithTheFirstOrigin_R98(t *testing.T) {
	t.Parallel()
	a, b, sub := mustParse(t, "https://a.example/1"), mustParse(t, "https://b.example/"), mustParse(t, "https://sub.a.example/")
	same, upper, port := mustParse(t, "https://A.example.:443/2"), mustParse(t, "http://a.example/"), mustParse(t, "https://a.example:8443/")
	for _, test := range []struct {
		chain []Target
		to    Target
		want  bool
	}{
		{[]Target{a}, same, true}, {[]Target{a}, b, false}, {[]Target{a}, sub, false}, {[]Target{sub}, a, false},
		{[]Target{a}, port, false}, {[]Target{upper}, a, false}, {[]Target{a, b}, same, false}, {[]Target{a, b}, b, false},
	} {
		if got := (Redirect{Chain: test.chain}).KeepsSecrets(test.to); got != test.want {
			t.Errorf("%v to %v: %v", test.chain, test.to, got)
		}
	}
}

// FuzzParse: the normal form is a fixed point that package net/url reads alike, so
// nothing that was refused passes in its normal form, and nothing else is requested
// than was judged.
func FuzzParse(f *testing.F) {
	for _, raw := range []string{
		"https://user:p%40ss@Bücher.example.:8443/a%2fb/ü?q=<x>#f", "http://0x7f.1/", "http://[::ffff:a9fe:a9fe]:80", "http://[fe80::1%25eth0]/",
		"http://%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1", "https://a@b@c/", "https:///x", "javascript:x", "http://xn--fa-hia.example//x", "http://x.xn--",
		"http://metadata.goo\u00adgle.internal/", "http://local\u034fhost", "https://ẞ.example", "http://127。0。0。1?\\", "http://a-.ß",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		target, reason := Parse(raw)
		if reason != Allowed {
			if target.Host != "" || target.Addr.IsValid() || target.path != "" {
				t.Errorf("%s holds %q", reason, target.text())
			}
			return
		}
		normal := target.URL().String()
		again, reason := Parse(normal)
		target.Userinfo, target.written = false, normal
		if reason != Allowed || again != target || normal != target.text() {
			t.Errorf("%q is %q: %s, %q", raw, normal, reason, again.text())
		}
		if is := (Policy{}).Target(again); is != (Policy{}).Target(target) {
			t.Errorf("%q is judged %s in its normal form", raw, is)
		}
		u, err := url.Parse(normal)
		if err != nil || u.Hostname() != target.Host || u.Scheme != target.Scheme || u.User != nil || u.Fragment != "" {
			t.Errorf("%q is read as %v, %v", normal, u, err)
		}
		if a, err := netip.ParseAddr(target.Host); (err == nil) != target.Addr.IsValid() || err == nil && a != target.Addr {
			t.Errorf("%q says the address %v", normal, target.Addr)
		}
		// What net/url reads as a plain host is the host.
		if u, err := url.Parse(raw); err == nil && validName(lowerASCII(u.Hostname())) && !target.Addr.IsValid() &&
			!strings.Contains(lowerASCII(u.Hostname()), "xn--") && lowerASCII(u.Hostname()) != target.Host {
			t.Errorf("%q is %q for net/url, %q here", raw, u.Hostname(), target.Host)
		}
	})
}

// FuzzLocation: without a scheme and two slashes no Location leaves the origin.
func FuzzLocation(f *testing.F) {
	for _, location := range []string{"/x", "?q", "#f", "../..//x", "//b.example/", "///x", "x:y", "/\\x", "@b.example", ":80/x", ".//x"} {
		f.Add(location)
	}
	r := Redirect{Chain: []Target{mustParse(f, "https://a.example:8443/x/y?q")}}
	f.Fuzz(func(t *testing.T, location string) {
		target, reason := r.Target([]string{location})
		if _, _, absolute := cutScheme(location); reason == Allowed && !absolute && !strings.HasPrefix(location, "//") && target.Origin() != r.from().Origin() {
			t.Errorf("%q leads to %q", location, target.text())
		}
		if _, again := Parse(target.text()); reason == Allowed && again != Allowed {
			t.Errorf("%q is %q: %s", location, target.text(), again)
		}
	})
}

// BenchmarkParse reports the rate of each kind of URL, hostile ones of the largest
// size among them.
func BenchmarkParse(b *testing.B) {
	fill := func(head, s string, size int) string { return head + strings.Repeat(s, (size-len(head))/len(s)) }
	for _, c := range []struct{ name, raw string }{
		{"name", "https://mcp.example/mcp"}, {"address", "http://10.0.0.1:8080/mcp"}, {"number", "http://0x7f.1/"},
		{"IPv6", "http://[2606:4700:4700::1111]/mcp"}, {"IDNA", "https://bücher.example/mcp"},
		{"path", fill("https://mcp.example/", "a", MaxURL)}, {"escapes", fill("https://mcp.example/", "%41", MaxURL)},
		{"unicode path", fill("https://mcp.example/", "ü", MaxURL)}, {"slashes", fill("https://mcp.example/", "../", MaxURL)},
		{"long host", fill("https://", "a", MaxURL)}, {"dots", fill("https://", ".", MaxURL)}, {"percent host", fill("https://", "%61", MaxURL)},
		{"unicode host", fill("https://", "ü", maxHost)}, {"many letters", manyLetters()}, {"marks", fill("https://a", "\u0300", maxHost)},
		{"brackets", fill("https://", "[", MaxURL)}, {"ats", fill("https://", "@", MaxURL)}, {"colons", fill("https://", ":", MaxURL)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.raw)))
			b.ReportAllocs()
			for b.Loop() {
				t, reason := Parse(c.raw)
				if reason == Allowed {
					reason = Policy{}.Target(t)
				}
				if reason == "" {
					b.Fatal("no reason")
				}
			}
		})
	}
}

// manyLetters is a host of different letters, the worst case of Punycode.
func manyLetters() string {
	b := []rune("https://")
	for r := rune(0x4e00); len(b) < maxHost/3; r++ {
		b = append(b, r)
	}
	return string(b)
}
