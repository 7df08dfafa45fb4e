package turn

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Limits bound what a turn binds. A turn that would have more is not cut, it fails
// (R189, R190).
type Limits struct {
	// Tools is how many tools it has at most, SchemaBytes how large their input
	// schemas are together, in canonical JSON.
	Tools, SchemaBytes uint32
}

// Standard are the limits of the runtime; a host can have them smaller. Ceiling is
// what no limits exceed (R193).
var (
	Standard = Limits{Tools: 512, SchemaBytes: 3 << 20}
	ceiling  = Limits{Tools: 4096, SchemaBytes: 32 << 20}
)

// ParseLimits reads the limits that a host names, and returns the smaller of each
// and the standard one (R192). What is no whole number from 1 to the ceiling is
// rejected and not clamped: the fault is of kind limits_invalid then, and what is
// to be recorded comes with it. A limit that is not enforced is an unknown_argument.
func ParseLimits(given map[string]jsontext.Value) (Limits, *events.LimitsRejected, error) {
	const op = "turn.limits"
	l := Standard
	for _, name := range slices.Sorted(maps.Keys(given)) {
		var field *uint32
		var most uint32
		switch name {
		case "tools":
			field, most = &l.Tools, ceiling.Tools
		case "schema_bytes":
			field, most = &l.SchemaBytes, ceiling.SchemaBytes
		default:
			return Limits{}, nil, fault.New(op, fault.UnknownArgument, redact.Name("unknown parameter /limits/"+name+"; there are tools and schema_bytes"))
		}
		n, err := strconv.ParseUint(string(given[name]), 10, 32)
		if err != nil || n == 0 || n > uint64(most) {
			rejected := &events.LimitsRejected{Field: name, Maximum: most}
			return Limits{}, rejected, fault.New(op, fault.LimitsInvalid, redact.Name(fmt.Sprintf("limits.%s: a whole number from 1 to %d", name, most)))
		}
		*field = min(*field, uint32(n))
	}
	return l, nil, nil
}

// Exceeded is how a turn with so much fails; nil where it is within the limits.
func (l Limits) Exceeded(tools, schemaBytes int) *events.TurnFailed {
	failed := func(kind fault.Kind, actual int, maximum uint32) *events.TurnFailed {
		return &events.TurnFailed{Reason: string(kind), Actual: uint32(actual), Maximum: maximum}
	}
	switch {
	case tools > int(l.Tools):
		return failed(fault.TooManyTools, tools, l.Tools)
	case schemaBytes > int(l.SchemaBytes):
		return failed(fault.SchemaBytesExceeded, schemaBytes, l.SchemaBytes)
	}
	return nil
}
