package connection

import (
	"encoding/json"
	"testing"
)

// Decision 22: a snapshot gives back the bytes that it was given, and reads those
// of before.
func TestSnapshotKeepsDefinitionsByteForByte(t *testing.T) {
	t.Parallel()
	const definition = `{ "name":"a",	"x":[1.0, 1e400], "d":"\ud83d <b>\/` + "\u2028" + `" }`
	body, err := json.Marshal(Snapshot{Tools: []SnapshotTool{{Name: "a", Digest: "d", Definition: Definition(definition)}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{string(body), `{"tools":[{"name":"a","digest":"d","definition":` + definition + `}]}`} {
		var s Snapshot
		if err := json.Unmarshal([]byte(body), &s); err != nil || string(s.Tools[0].Definition) != definition {
			t.Errorf("%s: %+v %v", body, s, err)
		}
	}
}
