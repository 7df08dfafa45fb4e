package redact

import "strings"

// A form is what the tokens of an issuer look like: how they begin, and what
// follows. Kinds of forms after gitleaks (MIT) and detect-secrets (Apache-2.0).
type form struct {
	prefix   string
	alphabet byte // of what follows
	least    int  // how much follows at least
	most     int  // and at most, 0 is any
	name     string
}

// Alphabets of tokens, a bit each.
const (
	words       = 1 << iota // letters and digits
	dashed                  // and _ and -
	dotted                  // and .
	hexDigits               // in lower case
	upperDigits             // upper case and digits
)

var alphabets = func() (t [256]byte) {
	for c := range t {
		switch c := byte(c); {
		case digit(c):
			t[c] = words | dashed | dotted | hexDigits | upperDigits
		case 'a' <= c && c <= 'f':
			t[c] = words | dashed | dotted | hexDigits
		case 'g' <= c && c <= 'z':
			t[c] = words | dashed | dotted
		case 'A' <= c && c <= 'Z':
			t[c] = words | dashed | dotted | upperDigits
		case c == '_' || c == '-':
			t[c] = dashed | dotted
		case c == '.':
			t[c] = dotted
		}
	}
	return t
}()

// forms are the known ones by their first byte.
var forms = func() (t [256][]form) {
	add := func(name string, alphabet byte, least, most int, prefixes string) {
		for _, p := range strings.Fields(prefixes) {
			t[p[0]] = append(t[p[0]], form{p, alphabet, least, most, name})
		}
	}
	add("github_token", words, 30, 0, "ghp_ gho_ ghu_ ghs_ ghr_")
	add("github_token", dashed, 30, 0, "github_pat_")
	add("gitlab_token", dashed, 18, 0, "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glimt- glagent- gloas- GR1348941")
	add("slack_token", dotted, 10, 0, "xoxb- xoxp- xoxa- xoxr- xoxs- xoxo- xoxe- xoxe. xapp-")
	add("stripe_key", words, 16, 0, "sk_live_ sk_test_ rk_live_ rk_test_ sk_prod_ rk_prod_")
	add("webhook_secret", dashed, 24, 0, "whsec_")
	add("google_api_key", dashed, 35, 35, "AIza")
	add("google_token", dotted, 20, 0, "ya29. GOCSPX- 1//0")
	add("aws_access_key_id", upperDigits, 16, 16, "AKIA ASIA ABIA ACCA")
	add("aws_api_key", dashed, 40, 0, "ABSK bedrock-api-key-")
	add("pypi_token", dashed, 50, 0, "pypi-AgE")
	add("sendgrid_key", dotted, 40, 0, "SG.")
	add("mailgun_key", hexDigits, 32, 32, "key-")
	add("mailgun_key", hexDigits, 32, 32, "pubkey-")
	add("digitalocean_token", hexDigits, 64, 64, "dop_v1_ doo_v1_ dor_v1_")
	add("doppler_token", dotted, 40, 0, "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.")
	add("vault_token", dotted, 20, 0, "hvs. hvb. hvr.")
	add("databricks_token", hexDigits, 32, 0, "dapi dose")
	add("shopify_token", hexDigits, 32, 32, "shpat_ shpca_ shppa_ shpss_")
	add("square_token", dashed, 22, 0, "sq0csp- sq0atp- sq0idp- EAAAE")
	add("linear_key", words, 32, 0, "lin_api_ lin_oauth_")
	add("notion_token", words, 40, 0, "ntn_ secret_")
	add("grafana_token", dashed, 32, 0, "glsa_ glc_")
	add("sentry_token", dashed, 40, 0, "sntryu_ sntrys_")
	add("flyio_token", dashed, 40, 0, "fo1_ fm1r_ fm1a_ fm2_")
	add("age_key", upperDigits, 58, 58, "AGE-SECRET-KEY-1")
	add("docker_token", dashed, 24, 0, "dckr_pat_ dckr_oat_")
	add("perplexity_key", words, 40, 0, "pplx-")
	add("groq_key", words, 40, 0, "gsk_")
	add("xai_key", words, 40, 0, "xai-")
	add("rubygems_key", hexDigits, 48, 48, "rubygems_")
	add("pulumi_token", hexDigits, 40, 40, "pul-")
	add("planetscale_token", dashed, 32, 0, "pscale_tkn_ pscale_pw_ pscale_oauth_")
	add("sonar_token", hexDigits, 40, 40, "squ_ sqp_ sqa_")
	add("sourcegraph_token", dotted, 40, 0, "sgp_ sgd_ slk_")
	add("dynatrace_token", dotted, 60, 0, "dt0c01. dt0s01. dt0s16. dt0s02.")
	add("npm_token", words, 36, 36, "npm_")
	add("openai_key", dashed, 32, 0, "sk-proj- sk-svcacct- sk-admin- sk-None-")
	add("openai_key", words, 32, 0, "sk-")
	add("anthropic_key", dashed, 32, 0, "sk-ant-")
	add("openrouter_key", dashed, 32, 0, "sk-or-")
	add("huggingface_token", words, 30, 0, "hf_ api_org_")
	add("replicate_token", words, 37, 37, "r8_")
	add("atlassian_token", dashed, 40, 0, "ATATT3x ATCTT3x ATBB ATOA")
	add("figma_token", dashed, 30, 0, "figd_ figo_ figor_")
	add("postman_key", dashed, 40, 0, "PMAK-")
	add("newrelic_key", dashed, 20, 0, "NRAK- NRJS- NRII- NRAL-")
	add("langsmith_key", dashed, 32, 0, "lsv2_pt_ lsv2_sk_")
	add("nvidia_key", dashed, 40, 0, "nvapi-")
	add("tavily_key", dashed, 24, 0, "tvly-")
	add("firecrawl_key", hexDigits, 32, 32, "fc-")
	add("supabase_key", dashed, 20, 0, "sbp_ sb_secret_")
	add("buildkite_token", words, 32, 0, "bkua_")
	add("circleci_token", dashed, 40, 0, "CCIPAT_")
	add("posthog_key", words, 40, 0, "phx_")
	add("artifactory_token", words, 60, 0, "AKCp cmVmdGtu")
	add("twilio_key", hexDigits, 32, 32, "SK")
	add("onepassword_token", dotted, 100, 0, "ops_eyJ")
	add("dropbox_token", dotted, 100, 0, "sl.")
	add("nuget_key", words, 43, 43, "oy2")
	add("contentful_token", dashed, 43, 43, "CFPAT-")
	add("adobe_secret", words, 32, 32, "p8e-")
	add("alibaba_key", words, 20, 20, "LTAI")
	add("clojars_token", words, 60, 60, "CLOJARS_")
	add("duffel_token", dashed, 43, 43, "duffel_live_ duffel_test_")
	add("easypost_key", words, 54, 54, "EZAK EZTK")
	add("frameio_token", dashed, 64, 64, "fio-u-")
	add("infracost_key", words, 32, 32, "ico-")
	add("prefect_key", words, 36, 36, "pnu_")
	add("readme_key", words, 70, 70, "rdme_")
	add("scalingo_token", dashed, 48, 48, "tk-us-")
	add("sendinblue_key", dashed, 64, 0, "xkeysib- xsmtpsib-")
	add("shippo_token", hexDigits, 40, 40, "shippo_live_ shippo_test_")
	add("typeform_token", dashed, 40, 0, "tfp_")
	add("tailscale_key", dashed, 20, 0, "tskey-")
	add("ngrok_key", dashed, 40, 0, "ngrok-api-")
	add("netlify_token", words, 36, 0, "nfp_")
	add("render_key", words, 28, 0, "rnd_")
	add("vercel_token", dashed, 24, 0, "vcp_ vck_ vca_")
	add("airtable_token", dotted, 79, 80, "pat")
	return t
}()

// minRun is the length from which a run of the bytes of tokens is looked at.
const minRun = 12

// runs looks at the long runs of bytes that tokens are made of.
func (f *shapes) runs() {
	s := f.text
	for at, ok := nextRun(s, 0, minRun); ok; at, ok = nextRun(s, at, minRun) {
		end := at + minRun
		for end < len(s) && class[s[end]]&isRun != 0 {
			end++
		}
		f.run(at, end)
		at = end
	}
}

// run finds the tokens in a run.
func (f *shapes) run(start, end int) {
	s := f.text
	if f.afterBearer(start) && random(s[start:end]) && !(s[end-1] == '=' && end < len(s) && s[end] == '"') {
		f.hide(start, end, "bearer")
		return
	}
	if end-start < minToken {
		return
	}
	noJWT := 0 // none begins before it
	for at := start; at < end-minRun; at++ {
		if at > start && class[s[at-1]]&isWord != 0 {
			continue // within a word
		}
		for i := range forms[s[at]] {
			if n := forms[s[at]][i].match(s[at:end]); n > 0 {
				f.hide(at, at+n, forms[s[at]][i].name)
				at += n - 1
				break
			}
		}
		if s[at] == 'e' && at >= noJWT {
			n, ok := jwt(s[at:end])
			if ok {
				f.hide(at, at+n, "jwt")
				at += n - 1
			} else {
				noJWT = at + n
			}
		}
	}
	f.marked(start, end)
}

// minToken is the length of the shortest form.
const minToken = 19

// match returns the length of the token of the form that s begins with, or 0.
func (t *form) match(s string) int {
	if !strings.HasPrefix(s, t.prefix) {
		return 0
	}
	n, number := len(t.prefix), t.alphabet == upperDigits
	for ; n < len(s) && alphabets[s[n]]&t.alphabet != 0; n++ {
		if number = number || digit(s[n]); !number && n > maxBack {
			if number = random(s[len(t.prefix):n]); !number {
				return 0 // words
			}
		}
		if t.most > 0 && n-len(t.prefix) >= t.most {
			return 0
		}
	}
	for n > 0 && s[n-1] == '.' {
		n-- // of the sentence
	}
	if body := s[len(t.prefix):max(n, len(t.prefix))]; len(body) < t.least || !number && !random(body) {
		return 0
	}
	return n
}

// jwt returns the length of the JSON Web Token that s begins with. If s does not,
// none begins before that length.
func jwt(s string) (n int, ok bool) {
	if !strings.HasPrefix(s, "eyJ") {
		return 1, false
	}
	dots := 0
	for ; n < len(s) && alphabets[s[n]]&dotted != 0 && dots <= 4; n++ {
		if s[n] == '.' {
			dots++
		}
	}
	end := n
	for s[end-1] == '.' {
		end--
		dots--
	}
	switch {
	case dots < 2:
		return n, false
	case end < 30:
		return 1, false
	}
	return end, true
}

// afterBearer says that the word before the run at the offset at is the scheme
// of a credential.
func (f *shapes) afterBearer(at int) bool {
	s := f.text
	end := at
	for end > 0 && at-end < 4 && blank(s[end-1]) {
		end--
	}
	if end == at || end == 0 || s[end-1]|0x20 != 'r' && s[end-1]|0x20 != 'c' {
		return false
	}
	for _, scheme := range []string{"bearer", "basic"} {
		if start := end - len(scheme); start >= 0 && strings.EqualFold(s[start:end], scheme) && (start == 0 || class[s[start-1]]&isName == 0) {
			return true
		}
	}
	return false
}

// marked finds tokens whose mark is not at their begin.
func (f *shapes) marked(start, end int) {
	s := f.text[start:end]
	if len(s) < 34 {
		return
	}
	hide := func(from, to int, name string) {
		if from >= 0 && from < to && to <= len(s) {
			f.hide(start+from, start+to, name)
		}
	}
	if i := strings.Index(s, "Q~"); i >= 4 && len(s)-i >= 33 {
		hide(i-4, min(len(s), i+2+34), "azure_secret")
	}
	if i := strings.Index(s, ".atlasv1."); i >= 14 {
		hide(i-14, len(s), "terraform_token")
	}
	if i := strings.Index(s, "-us"); i >= 32 && len(s) > i+3 && digit(s[i+3]) && hexRun(s[i-32:i]) {
		hide(i-32, min(len(s), i+5), "mailchimp_key")
	}
	// A bot of Telegram: digits, a colon and 35 characters.
	if len(s) >= 35 && s[0] == 'A' && start > 8 && f.text[start-1] == ':' {
		from := start - 1
		for from > 0 && start-from < 12 && digit(f.text[from-1]) {
			from--
		}
		if n := start - 1 - from; n >= 8 && n <= 10 {
			f.hide(from, min(end, start+35), "telegram_token")
		}
	}
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

func hexRun(s string) bool {
	for i := range len(s) {
		if alphabets[s[i]]&hexDigits == 0 {
			return false
		}
	}
	return true
}
