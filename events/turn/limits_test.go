package turn_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/turn"
)

func TestLimitsAreTheSmallerOnes_R192(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		given map[string]jsontext.Value
		want  turn.Limits
	}{
		"none":        {nil, turn.Standard},
		"smaller":     {map[string]jsontext.Value{"tools": jsontext.Value("1"), "schema_bytes": jsontext.Value("2")}, turn.Limits{Tools: 1, SchemaBytes: 2}},
		"one of them": {map[string]jsontext.Value{"tools": jsontext.Value("511")}, turn.Limits{Tools: 511, SchemaBytes: 3_145_728}},
		"larger":      {map[string]jsontext.Value{"tools": jsontext.Value("4096"), "schema_bytes": jsontext.Value("33554432")}, turn.Standard},
	} {
		if got, rejected, err := turn.ParseLimits(c.given); err != nil || rejected != nil || got != c.want {
			t.Errorf("%s: %+v, rejected %+v, error %v", name, got, rejected, err)
		}
	}
}

func TestImpossibleLimitsAreRejectedAndNotClamped_R193(t *testing.T) {
	t.Parallel()
	for field, most := range map[string]uint32{"tools": 4096, "schema_bytes": 32 << 20} {
		for _, value := range []string{"0", "-1", "1.5", "1e3", "1e400", "4294967297", "99999999999999999999", "33554433", `"7"`, "null", "true", "{}"} {
			_, rejected, err := turn.ParseLimits(map[string]jsontext.Value{field: jsontext.Value(value)})
			if !fault.Is(err, fault.LimitsInvalid) || !strings.Contains(err.Error(), "limits."+field+":") {
				t.Errorf("%s %s: error %v", field, value, err)
			}
			if diff := cmp.Diff(&events.LimitsRejected{Field: field, Maximum: most}, rejected); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", field, value, diff)
			}
		}
	}
	if _, rejected, err := turn.ParseLimits(map[string]jsontext.Value{"tools": jsontext.Value("4097")}); rejected == nil || err == nil {
		t.Error("more than the ceiling is taken")
	}
	// What is not enforced is not accepted.
	if _, rejected, err := turn.ParseLimits(map[string]jsontext.Value{"calls": jsontext.Value("3")}); rejected != nil || !fault.Is(err, fault.UnknownArgument) || !strings.Contains(err.Error(), "/limits/calls") {
		t.Errorf("rejected %+v, error %v", rejected, err)
	}
}

func TestTurnAtItsLimitsPassesAndOneBeyondFails_R189_R190(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tools, bytes int
		want         *events.TurnFailed
	}{
		"at the limits":   {512, 3_145_728, nil},
		"too many tools":  {513, 0, &events.TurnFailed{Reason: "too_many_tools", Actual: 513, Maximum: 512}},
		"too many bytes":  {1, 3_145_729, &events.TurnFailed{Reason: "schema_bytes_exceeded", Actual: 3_145_729, Maximum: 3_145_728}},
		"too much of all": {513, 3_145_729, &events.TurnFailed{Reason: "too_many_tools", Actual: 513, Maximum: 512}},
	} {
		if diff := cmp.Diff(c.want, turn.Standard.Exceeded(c.tools, c.bytes)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
