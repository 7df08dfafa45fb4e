package caller

import (
	"crypto/hmac"
	"crypto/sha256"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/inquiry"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/live"
)

// inputRequired is the type of a result with which the server asks its client for
// input (MCP 2026-07-28, multi round-trip requests). The client makes the request
// again with it, which is a call of its own: decided, and executed at most once.
// No round is repeated here, as the server may have done something already.
const inputRequired = "input_required"

// wanted is a request that such a result has for the client.
type wanted struct {
	Method string         `json:"method"`
	Params jsontext.Value `json:"params"`
}

// questions reads a result that asks for input, strictly: what is asked for decides
// whether the client gets it. Converted is its text with the requests. The state that
// the client only carries is left out: the arguments may be in it in a form that no
// redaction knows. A malformed result is [redact.ErrResult].
func questions(raw []byte) ([]wanted, redact.Converted, error) {
	var result struct {
		Requests jsontext.Value `json:"inputRequests"`
		State    *string        `json:"requestState"`
	}
	none := redact.Converted{}
	if json.Unmarshal(raw, &result, jsontext.AllowInvalidUTF8(true)) != nil || result.Requests == nil && result.State == nil {
		return nil, none, redact.ErrResult
	}
	text := `{"resultType":"` + inputRequired + `"`
	var asked map[string]wanted
	if result.Requests != nil {
		if result.Requests.Kind() != '{' || json.Unmarshal(result.Requests, &asked, jsontext.AllowInvalidUTF8(true)) != nil {
			return nil, none, redact.ErrResult
		}
		text += `,"inputRequests":` + string(result.Requests)
	}
	return slices.Collect(maps.Values(asked)), redact.Converted{Structured: true, Text: redact.NewRaw(text + "}")}, nil
}

// unasked says why the client does not get what a result asks of it; the kind is empty
// where it does. Where the client would not know what it is asked there is no offer.
// urls are the decisions on the pages that a person is to open.
func (a *attempt) unasked(asked []wanted) (kind fault.Kind, text redact.EventText, urls []events.UrlDecision, flags []string) {
	if len(asked) > live.MaxOpenAsks {
		return fault.ResultInvalid, redact.Static("the server asks its client for too much at once"), nil, nil
	}
	var offers []string
	if a.Input != nil {
		offers = inquiry.Offers(a.Input)
	}
	for _, w := range asked {
		v := inquiry.Judge(w.Method, w.Params, offers, a.URLs)
		flags = append(flags, v.Flags...)
		if v.URL != nil {
			v.URL.Server = a.binding.Server
			urls = append(urls, *v.URL)
		}
		if k, t := v.No(); k != "" && kind == "" {
			kind, text = k, t
		}
	}
	switch {
	case a.Input == nil && kind == "":
		kind, text = fault.ResultInvalid, redact.Static("the server asks its client for input, which it was not offered")
	case kind == fault.InvalidArguments:
		kind = fault.ResultInvalid // it is the server's
	}
	slices.Sort(flags)
	return kind, text, urls, slices.Compact(flags)
}

// inputKey is the key for the digest of arguments with input. What a person approves
// of such a round is all of it, and never a call whose arguments only look like it.
func inputKey(key []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(inputRequired))
	return mac.Sum(nil)
}
