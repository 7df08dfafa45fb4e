package declaration

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
)

// The bounds of a preview (R68).
const (
	previewItems = 50
	previewChars = 500
)

// Preview is what a person sees of a server before consenting to connect to
// it (R63). It holds names, shapes and keyed digests only: no env or header
// value, no positional argument, no part of the URL but its origin. That an
// argument is no secret cannot be known, so that none is shown, harmless ones
// included: who wants to read them opens the file at Path, which the fingerprint
// holds to what was asked about.
type Preview struct {
	ServerID       string           `json:"server_id"`
	Path           string           `json:"path"`
	Enabled        bool             `json:"enabled"`
	Transport      Transport        `json:"transport"`
	Risk           authority.Risk   `json:"risk"`
	ApprovalPolicy authority.Policy `json:"approval_policy"`
	// Effective is the policy that consent is asked under (R52).
	Effective         authority.Policy `json:"effective_connect_approval_policy"`
	CallCapability    string           `json:"call_capability"`
	ConnectCapability string           `json:"connect_capability"`

	// Of Stdio. Cwd is "." if the declaration has none.
	Command  string   `json:"command,omitzero"`
	Args     []string `json:"args,omitzero"`
	Cwd      string   `json:"cwd,omitzero"`
	EnvNames []string `json:"env_names,omitzero"`
	// Flags name what must not be overlooked: arguments that make a program run
	// whatever it is given, and variables that lead it elsewhere (E2, E3).
	Flags []string `json:"flags,omitempty"`

	// Of StreamableHTTP. URL is the origin. URLPolicy is the safe view of the
	// URL policy's verdict, which the asker fills in.
	URL         string          `json:"url,omitzero"`
	URLPolicy   json.RawMessage `json:"url_policy,omitzero"`
	HeaderNames []string        `json:"header_names,omitzero"`
}

// NewPreview makes the preview of a declaration (R63..R68). The key belongs to
// the host: with it the short digest of a value cannot be guessed elsewhere, and
// one value has one digest in all previews of the host.
func NewPreview(d Declaration, key []byte, effective authority.Policy) Preview {
	p := Preview{
		ServerID:          d.ServerID,
		Path:              d.Path,
		Enabled:           d.Enabled,
		Transport:         d.Transport,
		Risk:              d.Risk,
		ApprovalPolicy:    d.ApprovalPolicy,
		Effective:         effective,
		CallCapability:    d.CallCapability(),
		ConnectCapability: d.ConnectCapability(),
	}
	if d.Transport == StreamableHTTP {
		p.URL = clip(origin(d.URL.Reveal(), key))
		p.HeaderNames = names(d.Headers)
		return p
	}
	p.Command = clip(d.Command)
	p.Args = bounded(shapes(arguments(d.Command, d.Args.Reveal()), key))
	p.Cwd = "."
	if d.Cwd != "" {
		p.Cwd = clip(d.Cwd)
	}
	p.EnvNames = names(d.Env)
	p.Flags = bounded(flags(d))
	return p
}

// summary stands for a value that is not shown (R64). Without a key there is no
// digest: one that everybody can compute tells a short value.
func summary(value string, key []byte) string {
	length := utf8.RuneCountInString(value)
	if len(key) == 0 {
		return fmt.Sprintf("<value length:%d>", length)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(value))
	return fmt.Sprintf("<value sha256:%s length:%d>", hex.EncodeToString(mac.Sum(nil))[:12], length)
}

// shapes shows arguments by their options and by summaries (R64, R65, R66).
func shapes(args []argument, key []byte) []string {
	shown := make([]string, 0, len(args))
	for _, a := range args {
		switch {
		case a.secret:
			shown = append(shown, a.name+"=<redacted>")
		case a.name == "":
			shown = append(shown, summary(a.value, key))
		case a.value == "" && !a.assigned:
			shown = append(shown, a.name)
		case a.assigned:
			shown = append(shown, a.name+"="+summary(a.value, key))
		default:
			shown = append(shown, a.name+summary(a.value, key))
		}
	}
	return shown
}

// origin is that of the URL as the URL policy reads it, so that what a person is asked
// about is what is judged: scheme, host in ASCII, and port if it is not the default one;
// a summary of what the policy cannot read (R67).
func origin(raw string, key []byte) string {
	target, reason := urlpolicy.Parse(raw)
	if reason != urlpolicy.Allowed {
		return summary(raw, key)
	}
	return target.Origin()
}

func names(values map[string]redact.Raw[string]) []string {
	sorted := slices.AppendSeq(make([]string, 0, len(values)), maps.Keys(values))
	slices.Sort(sorted)
	return bounded(sorted)
}

// bounded cuts what is long, and says so (R68).
func bounded(list []string) []string {
	for i, s := range list {
		list[i] = clip(s)
	}
	if more := len(list) - previewItems; more > 0 {
		list = append(list[:previewItems], fmt.Sprintf("<truncated items:%d>", more))
	}
	return list
}

func clip(s string) string {
	runes := []rune(s)
	if more := len(runes) - previewChars; more > 0 {
		return string(runes[:previewChars]) + fmt.Sprintf("<truncated characters:%d>", more)
	}
	return s
}
