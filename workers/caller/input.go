package caller

import (
	"crypto/hmac"
	"crypto/sha256"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/redact"
)

// inputRequired is the type of a result with which the server asks its client for
// input (MCP 2026-07-28, multi round-trip requests). The client makes the request
// again with it, which is a call of its own: decided, and executed at most once.
// No round is repeated here, as the server may have done something already.
const inputRequired = "input_required"

// wanted is a request that such a result has for the client.
type wanted struct {
	Method string `json:"method"`
	Params struct {
		Mode  string         `json:"mode"`
		Tools jsontext.Value `json:"tools"`
	} `json:"params"`
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

// offered reports whether a client can be asked for all of it. input is what it
// offers, nil where it would not know what it is asked.
func offered(input []byte, asked []wanted) bool {
	var can map[string]map[string]jsontext.Value
	if input == nil || json.Unmarshal(input, &can) != nil {
		return false
	}
	for _, w := range asked {
		offer, _ := connection.OfferOf(w.Method, "")
		parts := can[offer]
		ok := parts != nil
		switch offer {
		case connection.OfferElicitation:
			// One that names no mode has forms.
			if url := parts["url"] != nil; w.Params.Mode == "url" || url && parts["form"] == nil {
				ok = url && w.Params.Mode == "url"
			}
		case connection.OfferSampling:
			ok = ok && (w.Params.Tools == nil || parts["tools"] != nil)
		}
		if !ok {
			return false
		}
	}
	return true
}

// inputKey is the key for the digest of arguments with input. What a person approves
// of such a round is all of it, and never a call whose arguments only look like it.
func inputKey(key []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(inputRequired))
	return mac.Sum(nil)
}
