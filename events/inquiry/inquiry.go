// Package inquiry judges what a server asks its client: for its model, its user, its
// roots (attacks C1 and C2). Both ways come through here, a request of its own in the
// era of handshakes and a result that asks for input in the other one.
//
// What is asked reaches the client as it is or not at all (decision 22):
//
//   - It must be of a kind, and for elicitation of a mode, that the client has offered.
//   - A form asks for no secret: not by the name, the title or the format of a field,
//     nor in the words of its message, as MCP 2025-11-25 and 2026-07-28 have it. It is
//     flat. What a person is asked must be what is seen: hidden text is refused.
//   - A URL that a person is to open is judged like one that is contacted, but for the
//     addresses of its name, which is looked up elsewhere: https, or a private place
//     that the operator trusts; no userinfo.
//   - A model is asked for nothing of other servers (includeContext allServers), and no
//     message in the name of the system. A system prompt, which MCP leaves to the
//     client, and hidden text, which may be what is to be worked on, are flagged.
//
// How often a server may ask is the business of package live.
package inquiry

import (
	"regexp"
	"slices"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/call"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/hidden"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/urlpolicy"
)

// FlagSystemPrompt is the flag of a request that gives the client's model a system
// prompt. The others are the classes of package hidden.
const FlagSystemPrompt = "system_prompt"

// Verdict is what becomes of a request.
type Verdict struct {
	// Reason says why the client is not asked, empty where it is, or where URL is a no.
	Reason  fault.Kind
	Message redact.EventText
	// URL is what was decided on the URL of the request, nil without one. The server is
	// left to the caller.
	URL *events.UrlDecision
	// Flags are what is noteworthy of it.
	Flags []string
}

// No is why the client is not asked; the kind is empty where it is.
func (v Verdict) No() (fault.Kind, redact.EventText) {
	if v.Reason == "" && v.URL != nil && !v.URL.Allowed {
		return fault.URLBlocked, call.NotContacted(*v.URL)
	}
	return v.Reason, v.Message
}

// Offers are what a client offers servers, by its capabilities. What is no object
// is no offer.
func Offers(capabilities jsontext.Value) []string {
	var out []string
	read := func(v jsontext.Value) map[string]jsontext.Value {
		var m map[string]jsontext.Value
		if v.Kind() != '{' || jsonv2.Unmarshal(v, &m) != nil {
			return nil
		}
		return m
	}
	top := read(capabilities)
	for kind, parts := range map[string][]string{
		connection.OfferSampling:    {connection.OfferSamplingContext, connection.OfferSamplingTools},
		connection.OfferElicitation: {connection.OfferElicitationForm, connection.OfferElicitationURL},
		connection.OfferRoots:       {connection.OfferRootsChanged},
	} {
		if top[kind].Kind() != '{' {
			continue
		}
		out = append(out, kind)
		members := read(top[kind])
		for _, part := range parts {
			if k := members[part[len(kind)+1:]].Kind(); k == '{' || k == 't' {
				out = append(out, part)
			}
		}
	}
	slices.Sort(out)
	return out
}

// wanted are the params of all that can be asked for, as far as they are judged.
type wanted struct {
	// Of elicitation.
	Mode    string         `json:"mode"`
	Message string         `json:"message"`
	URL     string         `json:"url"`
	Schema  jsontext.Value `json:"requestedSchema"`
	// Of sampling.
	Messages []struct {
		Role string `json:"role"`
	} `json:"messages"`
	Context    string         `json:"includeContext"`
	System     jsontext.Value `json:"systemPrompt"`
	Tools      jsontext.Value `json:"tools"`
	ToolChoice jsontext.Value `json:"toolChoice"`
}

// lenient is how servers may write texts; a member that occurs twice could be read in
// two ways.
var lenient = jsontext.AllowInvalidUTF8(true)

// Judge decides on a request of a server to a client with these offers. params are as
// sent, nil for none.
func Judge(method string, params []byte, offers []string, urls urlpolicy.Policy) Verdict {
	has := func(offer string) bool { return slices.Contains(offers, offer) }
	offer, _ := connection.OfferOf(method, "")
	if offer == "" || !has(offer) {
		return notOffered()
	}
	var w wanted
	if offer != connection.OfferRoots && params != nil && jsonv2.Unmarshal(params, &w, lenient) != nil {
		return Verdict{Reason: fault.InvalidArguments, Message: redact.Static("the params of the request cannot be read in one way only")}
	}
	v := Verdict{Flags: hidden.JSON(params)}
	switch offer {
	case connection.OfferElicitation:
		url := has(connection.OfferElicitationURL)
		switch {
		case w.Mode == "url" && !url, w.Mode != "url" && url && !has(connection.OfferElicitationForm):
			return notOffered()
		case slices.ContainsFunc(v.Flags, func(class string) bool { return class != hidden.Instruction }):
			return v.refuse(redact.Static("a person would not see all that is asked: there is hidden text in it"))
		case w.Mode == "url":
			v.URL = page(w.URL, urls)
			return v
		}
		return v.form(w)
	case connection.OfferSampling:
		switch {
		case (w.Tools != nil || w.ToolChoice != nil) && !has(connection.OfferSamplingTools):
			return notOffered()
		case w.Context == "allServers":
			return v.refuse(redact.Static("a server gets nothing of the context of others"))
		}
		for _, m := range w.Messages {
			if m.Role != "user" && m.Role != "assistant" {
				return v.refuse(redact.Static("a message of a server is the user's or the assistant's"))
			}
		}
		if w.System != nil && w.System.Kind() != 'n' {
			v.Flags = append(v.Flags, FlagSystemPrompt)
		}
	}
	return v
}

func notOffered() Verdict {
	return Verdict{Reason: fault.InvalidArguments, Message: redact.Static("the client did not offer what the server asks for")}
}

func (v Verdict) refuse(text redact.EventText) Verdict {
	v.Reason, v.Message = fault.SecurityBlocked, text
	return v
}

// page decides on a URL that a person is to open.
func page(raw string, urls urlpolicy.Policy) *events.UrlDecision {
	t, reason := urlpolicy.Parse(raw)
	if reason == urlpolicy.Allowed && t.Userinfo {
		reason = urlpolicy.UserinfoNotAllowed
	}
	if reason == urlpolicy.Allowed {
		reason = urls.Target(t)
	}
	if reason == urlpolicy.Allowed && t.Scheme != "https" && (urlpolicy.Policy{}).Target(t) == urlpolicy.Allowed {
		reason = urlpolicy.UnsupportedScheme // in clear over public networks
	}
	return &events.UrlDecision{
		Phase: urlpolicy.PhaseElicitation, Allowed: reason == urlpolicy.Allowed, Reason: string(reason), Origin: t.Origin(), Policy: urls.ID(),
	}
}

// field is one of a form, or what a form consists of.
type field struct {
	Type        string         `json:"type"`
	Format      string         `json:"format"`
	Title       string         `json:"title"`
	Description string         `json:"description"`
	Properties  jsontext.Value `json:"properties"`
	Items       *field         `json:"items"`
	// OneOf and AnyOf are the choices of a field: constants with titles.
	OneOf []field        `json:"oneOf"`
	AnyOf []field        `json:"anyOf"`
	Const jsontext.Value `json:"const"`

	Rest map[string]jsontext.Value `json:",embed"`
}

// elsewhere are the keywords by which a schema has fields that are not among its
// properties, or more of a field than is said with it.
var elsewhere = []string{
	"$ref", "$dynamicRef", "$recursiveRef", "allOf", "not", "if", "then", "else", "dependentSchemas", "dependencies", "patternProperties",
	"additionalProperties", "unevaluatedProperties", "prefixItems", "additionalItems", "unevaluatedItems", "contains",
}

// composed tells whether a schema is more than what is judged of it. With true or
// false, none of the keywords adds anything.
func (f *field) composed() bool {
	return slices.ContainsFunc(elsewhere, func(keyword string) bool {
		v, ok := f.Rest[keyword]
		return ok && v.Kind() != 't' && v.Kind() != 'f'
	})
}

func (f *field) nested() bool {
	nested := func(f field) bool { return f.nested() }
	return f != nil && (f.Type == "object" || f.Properties != nil || f.composed() ||
		f.Items.nested() || f.Type == "array" && f.Items != nil && f.Items.Type == "array" ||
		slices.ContainsFunc(f.OneOf, nested) || slices.ContainsFunc(f.AnyOf, nested))
}

// secret tells whether a person would type a secret into a field. A description is a
// name where it is as short as one. A choice that is a constant is picked, not typed.
func (f field) secret(name string) bool {
	if f.Type == "boolean" {
		return false
	}
	nameless := func(f field) bool { return f.Const == nil && f.secret("") }
	return secretName(name) || secretName(f.Title) || strings.EqualFold(f.Format, "password") ||
		len(strings.Fields(f.Description)) <= 4 && secretName(f.Description) || asksForSecret(f.Description) ||
		f.Items != nil && nameless(*f.Items) || slices.ContainsFunc(f.OneOf, nameless) || slices.ContainsFunc(f.AnyOf, nameless)
}

// form decides on a form.
func (v Verdict) form(w wanted) Verdict {
	var schema field
	var fields map[string]field
	if w.Schema != nil && jsonv2.Unmarshal(w.Schema, &schema, lenient) != nil ||
		schema.Properties != nil && jsonv2.Unmarshal(schema.Properties, &fields, lenient) != nil {
		return v.refuse(redact.Static("the fields of the form cannot be read in one way only"))
	}
	if schema.composed() || schema.Items != nil || schema.OneOf != nil || schema.AnyOf != nil {
		return v.refuse(redact.Static("all fields of a form are its properties"))
	}
	secret := asksForSecret(w.Message)
	for name, f := range fields {
		if f.nested() {
			return v.refuse(redact.Static("a form has no form in it"))
		}
		secret = secret || f.secret(name)
	}
	if secret {
		return v.refuse(redact.Static("a form must not ask for passwords, keys, tokens or other secrets"))
	}
	return v
}

// line is text with single spaces in place of all that separates words.
func line(text string) string { return strings.Join(strings.Fields(text), " ") }

// secretName is redact.SensitiveName for what a person is asked: nobody types a pin
// that is none.
func secretName(name string) bool {
	name = line(name)
	return redact.SensitiveName(name) || strings.EqualFold(name, "pin")
}

// asking finds the order to hand out a secret: a verb, some words, the secret, and the
// word behind it, in a line.
var asking = regexp.MustCompile(`(?i)\b(?:enter|type|paste|provide|give|supply|input|submit|share|send|tell|confirm)\b((?: [\w'’]+){0,4}?) ` +
	`(?:passwords?|passphrases?|passcodes?|api[ _-]?keys?|access[ _-]?tokens?|auth(?:entication|orization)?[ _-]?tokens?|bearer[ _-]?tokens?|` +
	`secret[ _-]?keys?|private[ _-]?keys?|client[ _-]?secrets?|credentials|seed[ _-]phrases?|recovery[ _-](?:phrase|code)s?|one[ _-]time[ _-](?:code|password)s?|` +
	`otp|2fa[ _-]codes?|security[ _-]codes?|verification[ _-]codes?|credit[ _-]card|card[ _-]numbers?|cvv|cvc|pin|social[ _-]security[ _-]number|ssn)\b(?: (\w+))?`)

const other = `name|names|file|files|path|id|ids|label|type|kind|manager|policy|rules?|hint|length|expiry|lifetime|rotation|reset|format|scopes?`

// about are words behind a secret that make it something else: the name of a key is
// none. In front of it they must be bound to it: an id and a password are two things.
var (
	about   = regexp.MustCompile(`(?i)\b(?:` + other + `|number of)\b`)
	aboutOf = regexp.MustCompile(`(?i)\b(?:` + other + `|number) (?:of|for|to)\b`)
	another = regexp.MustCompile(`(?i)\b(?:and|or|plus|with|then)\b`)
)

func asksForSecret(text string) bool {
	for _, m := range asking.FindAllStringSubmatch(line(text), -1) {
		at := aboutOf.FindStringIndex(m[1])
		if bound := at != nil && !another.MatchString(m[1][at[1]:]); !bound && !about.MatchString(m[2]) {
			return true
		}
	}
	return false
}
