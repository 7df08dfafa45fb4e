package urlpolicy

import (
	"net/url"
	"slices"
	"strings"
)

// MaxRedirects is how many redirects of a request are followed (decision 24).
const MaxRedirects = 10

// Redirect is an answer that names another place, of a request that has been sent.
// Its target is judged like any other, and then by Rule.
type Redirect struct {
	Chain  []Target // what was requested so far, in order; never empty
	Status int      // of the answer
	Method string   // of the request
	Body   bool     // the request had one
	Limit  int      // how many redirects are followed, usually MaxRedirects
}

// Followed says whether an answer with this status is a redirect that is followed.
// Others are answers, whatever they name.
func Followed(status int) bool {
	switch status {
	case 301, 302, 303, 307, 308:
		return true
	}
	return false
}

// Target is where the redirect goes, by all of its Location headers. It is
// RedirectMissingLocation if there is none, InvalidURL if they differ.
func (r Redirect) Target(locations []string) (Target, Reason) {
	if len(locations) == 0 || locations[0] == "" {
		return Target{}, RedirectMissingLocation
	}
	location := locations[0]
	if slices.ContainsFunc(locations, func(l string) bool { return l != location }) {
		return Target{}, InvalidURL
	}
	if _, _, absolute := cutScheme(location); absolute {
		return Parse(location)
	}
	from := r.from()
	if strings.HasPrefix(location, "//") {
		return Parse(from.Scheme + ":" + location)
	}
	if len(location) > MaxURL || !plain(location) {
		return Target{}, InvalidURL
	}
	u, err := url.Parse(location)
	if err != nil {
		return Target{}, InvalidURL
	}
	u = from.URL().ResolveReference(u)
	return Parse(from.Origin() + u.RequestURI())
}

// Rule judges the step from the last request to a target that the policy allows.
func (r Redirect) Rule(to Target) Reason {
	from := r.from()
	rewritten := r.Status != 307 && r.Status != 308 && r.Method != "GET" && r.Method != "HEAD"
	switch {
	case slices.ContainsFunc(r.Chain, func(t Target) bool { return t.written == to.written }):
		return RedirectLoop // another spelling is none: servers send clients to the one they like
	case len(r.Chain) > r.Limit:
		return RedirectLimit
	case from.Scheme == "https" && to.Scheme == "http":
		return RedirectDowngrade
	case to.Userinfo:
		return UserinfoNotAllowed
	case r.Body && !rewritten && from.Origin() != to.Origin():
		return RedirectBodyCrossOrigin
	case rewritten:
		return RedirectMethodRewrite
	}
	return Allowed
}

// KeepsSecrets says whether the request to the target may carry what was meant for
// the first one: headers that are declared, of authorization, cookies and the
// session. Once a chain has left the origin it is no, even when it comes back.
func (r Redirect) KeepsSecrets(to Target) bool {
	origin := to.Origin()
	return !slices.ContainsFunc(r.Chain, func(t Target) bool { return t.Origin() != origin })
}

func (r Redirect) from() Target { return r.Chain[len(r.Chain)-1] }
