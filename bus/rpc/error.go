// Package rpc has the error object of JSON-RPC as every face of Gatebus answers
// it: commands on the bus, and HTTP.
package rpc

import (
	"errors"
	"fmt"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Error is the error object.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    Data   `json:"data"`
}

// Data is what a program goes by: the GB number and the kind.
type Data struct {
	Code string     `json:"code"`
	Kind fault.Kind `json:"kind"`
	Hint string     `json:"hint,omitempty"`
}

// ErrorOf is the error object of an error. What is no fault is internal, and
// what it says is not sent.
func ErrorOf(err error) Error {
	f, ok := errors.AsType[*fault.Fault](err)
	if !ok {
		f = fault.New("", fault.Internal, redact.Static("gatebus has an error of its own"))
	}
	e, _ := fault.Lookup(f.Kind)
	return Error{codeOf(e.Kind), f.Text.String(), Data{fmt.Sprintf("GB%04d", e.Number), e.Kind, e.Hint}}
}

// codeOf is the number that JSON-RPC has for a kind; one of its range for
// servers stands for all that it has none for.
func codeOf(k fault.Kind) int {
	switch k {
	case fault.InvalidRequest:
		return -32600
	case fault.UnknownMethod:
		return -32601
	case fault.InvalidInput, fault.UnknownArgument:
		return -32602
	case fault.Internal:
		return -32603
	}
	return -32000
}

// Fault is the error as its reader has it. A kind that this program does not
// know is internal.
func (e Error) Fault(op string) *fault.Fault {
	entry, _ := fault.Lookup(e.Data.Kind)
	return fault.New(op, entry.Kind, redact.Name(e.Message))
}
