// Package eventspb holds the protobuf messages of the log, generated from
// schemas/gatebus/v1. Only package events uses them.
package eventspb
