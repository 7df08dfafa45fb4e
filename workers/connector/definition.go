package connector

import (
	"context"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/live"
)

// The previews of a discovery are in one commit, which has a bound: one tool has a
// place of at most maxDefinition bytes, and all of them share definitionRoom.
const (
	maxDefinition  = 64 << 10
	definitionRoom = 2 << 20
	minDefinition  = 256
)

// definition is what a person sees of a tool that needs an approval of its own: its
// whole definition as the server sent it, since what is cut off is where an attack
// would stand (B1), and how it differs from the one that was approved (decision 7).
type definition struct {
	Server string `json:"server"`
	Tool   string `json:"tool"`
	// Suspicious are the classes of text in it that is not meant for people.
	Suspicious []string                `json:"suspicious,omitempty"`
	Diff       []connection.Difference `json:"diff,omitzero"`
	Definition jsontext.Value          `json:"definition,omitzero"`
	// Bytes is the size of a definition that is too large for the preview, which has
	// the beginning; the catalog has the whole.
	Bytes int    `json:"bytes,omitzero"`
	Begin string `json:"begin,omitzero"`
}

// previews makes those of the tools that will be held.
func (c *Connector) previews(ctx context.Context, s connection.State, conn *live.Conn, d *connection.Discovery, tools []connection.SnapshotTool) {
	held := s.Held(*d)
	d.Previews = make(map[string]redact.EventText, len(held))
	limit := max(min(maxDefinition, definitionRoom/max(len(held), 1)), minDefinition)
	earlier := c.earlier(s)
	for _, t := range tools {
		approved, ok := held[t.Name]
		if !ok {
			continue
		}
		p := definition{Server: s.Server, Tool: t.Name, Suspicious: d.Suspicious[t.Name], Definition: jsontext.Value(t.Definition)}
		if before := earlier(ctx, t.Name, approved); before != nil {
			p.Diff = connection.Diff(before, t.Definition)
		}
		d.Previews[t.Name] = p.view(conn.Redactor(), limit)
	}
}

// view is the preview within a limit.
func (p definition) view(r *redact.Redactor, limit int) redact.EventText {
	body, err := json.Marshal(p, lenient)
	if err == nil && len(body) > limit {
		whole := p.Definition
		p.Bytes, p.Definition, p.Diff = len(whole), nil, nil
		// Escapes make a string longer: a quarter of the place is a safe measure.
		p.Begin = string([]rune(string(whole[:min(len(whole), limit/4)])))
		body, err = json.Marshal(p, lenient)
	}
	if err != nil {
		return redact.Static(`{"redaction":"<redaction-failed>"}`)
	}
	// What the model may see has no secrets left; what is made of it goes through all
	// the same.
	if v := r.JSON(redact.NewRaw(body)); !v.Failed {
		return v.Event
	}
	return redact.Static(`{"redaction":"<redaction-failed>"}`)
}

// lenient takes JSON as servers send it and keeps it as it is.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true))

// earlier finds approved definitions in the catalogs that they were listed with. Each
// catalog is read once; what cannot be read is not there to compare with.
func (c *Connector) earlier(s connection.State) func(ctx context.Context, tool, digest string) connection.Definition {
	read := make(map[string]connection.Snapshot)
	return func(ctx context.Context, tool, digest string) connection.Definition {
		blob := s.Base[tool]
		if blob == "" {
			blob = s.Blob
		}
		if digest == "" || blob == "" {
			return nil
		}
		snapshot, ok := read[blob]
		if !ok {
			if body, err := c.Bus.Blob(ctx, blob); err == nil {
				_ = json.Unmarshal(body, &snapshot, lenient)
			}
			read[blob] = snapshot
		}
		i := slices.IndexFunc(snapshot.Tools, func(t connection.SnapshotTool) bool { return t.Name == tool && t.Digest == digest })
		if i < 0 {
			return nil
		}
		return snapshot.Tools[i].Definition
	}
}
