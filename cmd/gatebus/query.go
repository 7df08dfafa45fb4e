package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/projections/audit"
)

// auditQueryCommand asks the audit file of the home, not the bus: it works
// whether that runs or not.
func (m *Main) auditQueryCommand() *cobra.Command {
	var limit int
	var schema bool
	cmd := &cobra.Command{
		Use: "query SQL", Short: "Ask the audit file of the home with SQL (SQLite), read only",
		Long: "Asks <home>/audit.db, which has one row for each event of the log, with SQL as SQLite has it. The bus need not\n" +
			"run; while it runs the file is at most a moment behind. Nothing can be changed.\n\n" +
			"Tables and views: " + strings.Join(audit.Tables(), ", ") + ". With --schema it prints how they are made.",
		Args: func(cmd *cobra.Command, args []string) error {
			if schema {
				return exactly()(cmd, args)
			}
			return exactly("SQL")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if schema {
				_, err := fmt.Fprint(m.Stdout, audit.Schema())
				return err
			}
			if limit < 0 {
				return usage("--limit must not be negative")
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), m.timeout)
			defer cancel()
			answer, err := audit.Query(ctx, filepath.Join(m.home, audit.File), args[0], limit)
			if err != nil {
				return m.queryError(err)
			}
			m.note("as of commit %d of the log", answer.Applied)
			if answer.More {
				m.note("there is more: these are the first %d rows (--limit)", limit)
			}
			return m.printAnswer(answer)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many rows; 0 is all")
	cmd.Flags().BoolVar(&schema, "schema", false, "print the tables and views")
	return cmd
}

func (m *Main) queryError(err error) error {
	if q, ok := errors.AsType[*audit.QuestionError](err); ok {
		return &problem{kind: fault.Usage, text: q.Text, hint: "gatebus audit query --schema shows the tables and views"}
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return &problem{kind: fault.NotFound, text: "the home " + m.home + " has no audit file", hint: "gatebus up makes it"}
	case errors.Is(err, context.DeadlineExceeded):
		return &problem{kind: fault.TimedOut, text: fmt.Sprintf("no answer within %v", m.timeout), hint: "ask for less, or wait longer with --timeout"}
	case errors.Is(err, context.Canceled):
		return err
	}
	return &problem{kind: fault.ProjectionPersistFailed, text: err.Error(), hint: "gatebus up makes the file afresh where it must"}
}

// printAnswer prints rows of any columns as --output says.
func (m *Main) printAnswer(answer audit.Answer) error {
	text := func(v any) string {
		switch v := v.(type) {
		case nil:
			return ""
		case []byte:
			return hex.EncodeToString(v)
		}
		return fmt.Sprint(v)
	}
	switch m.output {
	case "table":
		return m.table(func(t *table) {
			t.row(answer.Columns...)
			for _, row := range answer.Rows {
				cells := make([]string, len(row))
				for i, v := range row {
					cells[i] = text(v)
				}
				t.row(cells...)
			}
		})
	case "name":
		for _, row := range answer.Rows {
			if err := m.line(text(row[0])); err != nil {
				return err
			}
		}
		return nil
	}
	objects := make([]jsontext.Value, len(answer.Rows))
	for i, row := range answer.Rows {
		object, err := members(answer.Columns, row)
		if err != nil {
			return err
		}
		objects[i] = object
		if m.output == "jsonl" {
			if err := m.encode("jsonl", object); err != nil {
				return err
			}
		}
	}
	if m.output == "jsonl" {
		return nil
	}
	return m.encode(m.output, objects)
}

// members is the JSON object of a row, its members in the order of the columns.
func members(columns []string, row []any) (jsontext.Value, error) {
	var out strings.Builder
	e := jsontext.NewEncoder(&out, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if err := e.WriteToken(jsontext.BeginObject); err != nil {
		return nil, err
	}
	for i, name := range columns {
		if b, ok := row[i].([]byte); ok {
			row[i] = hex.EncodeToString(b)
		}
		if err := e.WriteToken(jsontext.String(name)); err != nil {
			return nil, err
		}
		if err := jsonv2.MarshalEncode(e, row[i]); err != nil {
			return nil, err
		}
	}
	err := e.WriteToken(jsontext.EndObject)
	return jsontext.Value(out.String()), err
}
