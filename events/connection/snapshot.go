package connection

import (
	"bytes"
	"encoding/json"
)

// Snapshot is the content of a catalog blob: the definitions as the model may
// see them, in the server's order.
type Snapshot struct {
	Tools     []SnapshotTool `json:"tools"`
	Resources []SnapshotItem `json:"resources,omitempty"`
	Templates []SnapshotItem `json:"resource_templates,omitempty"`
	Prompts   []SnapshotItem `json:"prompts,omitempty"`
	// Instructions is the SHA-256 of the server's instructions, hex; their text is not
	// stored (R173).
	Instructions string `json:"server_instructions_hash,omitempty"`
}

// SnapshotItem is one definition of a resource, a template of resources or a
// prompt. Its name is the URI, the template or the name.
type SnapshotItem struct {
	Name string `json:"name"`
	// Definition is the server's bytes but for secrets.
	Definition Definition `json:"definition"`
}

// SnapshotTool is one definition of a tool.
type SnapshotTool struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	// Definition is the server's bytes but for secrets.
	Definition Definition `json:"definition"`
}

// Definition is JSON that a snapshot keeps byte for byte: it is a string there, as
// an encoder takes the blanks out of an object. Older snapshots hold the object.
type Definition []byte

// MarshalJSON writes a string.
func (d Definition) MarshalJSON() ([]byte, error) { return json.Marshal(string(d)) }

// UnmarshalJSON reads either form.
func (d *Definition) UnmarshalJSON(b []byte) error {
	if b[0] != '"' {
		*d = bytes.Clone(b)
		return nil
	}
	var s string
	err := json.Unmarshal(b, &s)
	*d = Definition(s)
	return err
}
