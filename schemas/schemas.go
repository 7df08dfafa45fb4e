// Package schemas holds the wire contract: the protobuf sources of the events,
// and the JSON Schemas of events, methods and the configuration. All but the
// protobuf sources is generated.
package schemas

import "embed"

// FS has gatebus/v1/*.proto, json/events and json/rpc with a file for each event
// and method, and json/config.schema.json.
//
//go:embed gatebus json
var FS embed.FS
