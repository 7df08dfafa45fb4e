package connection

import "encoding/json"

// Snapshot is the content of a catalog blob: the definitions as the model may
// see them, in the server's order.
type Snapshot struct {
	Tools []SnapshotTool `json:"tools"`
}

// SnapshotTool is one definition.
type SnapshotTool struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	// Definition is the server's bytes but for secrets.
	Definition json.RawMessage `json:"definition"`
}
