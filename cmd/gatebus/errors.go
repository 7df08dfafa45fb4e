package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/events/fault"
)

// errorRow is one kind of error as gatebus errors prints it.
type errorRow struct {
	Code    string `json:"code"`
	Kind    string `json:"kind"`
	Exit    int    `json:"exit"`
	Meaning string `json:"meaning"`
	Hint    string `json:"hint"`
}

// errorRows is the table of errors.
func errorRows() (rows []errorRow) {
	for e := range fault.Table() {
		rows = append(rows, errorRow{fmt.Sprintf("GB%04d", e.Number), string(e.Kind), e.Exit, e.Meaning, e.Hint})
	}
	return rows
}

func (m *Main) errorsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "errors", Short: "List every error, its code, its exit code and what to do about it", Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			return printList(m, errorRows(), func(r errorRow) string { return r.Kind },
				column[errorRow]{"CODE", func(r errorRow) string { return r.Code }},
				column[errorRow]{"KIND", func(r errorRow) string { return r.Kind }},
				column[errorRow]{"EXIT", func(r errorRow) string { return count(r.Exit) }},
				column[errorRow]{"MEANING", func(r errorRow) string { return r.Meaning }},
				column[errorRow]{"HINT", func(r errorRow) string { return r.Hint }},
			)
		},
	}
}
