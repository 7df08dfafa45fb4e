package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/fault"
)

// What policy check can tell apart.
const (
	configurationFile = "configuration"
	declarationFile   = "declaration"
	coreDirectory     = "core"
)

// checked is what policy check says of a file.
type checked struct {
	File     string         `json:"file"`
	Kind     string         `json:"kind"`
	Valid    bool           `json:"valid"`
	Problems []checkProblem `json:"problems"`
}

// checkProblem is one thing that is wrong, or that a person should know.
type checkProblem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Field   string `json:"field,omitempty"`
	Code    string `json:"code"`
	Message string `json:"message"`
	Warning bool   `json:"warning"`
}

func (m *Main) policyCheckCommand() *cobra.Command {
	var kind string
	cmd := &cobra.Command{
		Use: "check FILE", Short: "Check a configuration, a declaration or the directory of a core; - is stdin", Args: exactly("FILE"),
		Long: "Checks a file without the bus and without starting anything: a configuration (gatebus.yaml), a declaration\n" +
			"(agent/mcp/NAME.yaml), or every declaration of a core where FILE is its directory. What a file is shows in its\n" +
			"fields; --kind says it.",
		RunE: func(_ *cobra.Command, args []string) error {
			if kind != "" && !slices.Contains([]string{configurationFile, declarationFile, coreDirectory}, kind) {
				return usage("--kind %q is none of %s, %s, %s", kind, configurationFile, declarationFile, coreDirectory)
			}
			c, err := m.checkFile(args[0], kind)
			if err != nil {
				return err
			}
			if err := m.printChecked(c); err != nil || c.Valid {
				return err
			}
			wrong := 0
			for _, p := range c.Problems {
				if !p.Warning {
					wrong++
				}
			}
			return &problem{kind: fault.ConfigInvalid, text: fmt.Sprintf("%s is no valid %s, errors: %d", c.File, c.Kind, wrong), hint: "the output names each with its line and field"}
		},
	}
	cmd.Flags().StringVar(&kind, "kind", "", "what the file is: configuration, declaration or core")
	return cmd
}

func (m *Main) printChecked(c checked) error {
	return m.printObject(c, c.File, func(t *table) {
		t.field("file", c.File)
		t.field("kind", c.Kind)
		t.field("valid", fmt.Sprint(c.Valid))
		if len(c.Problems) == 0 {
			return
		}
		t.row()
		t.row("LEVEL", "FILE", "LINE", "FIELD", "CODE", "MESSAGE")
		for _, p := range c.Problems {
			level, line := "error", ""
			if p.Warning {
				level = "warning"
			}
			if p.Line > 0 {
				line = strconv.Itoa(p.Line)
			}
			// The message is of any length, and no cell is cut before it.
			fmt.Fprintln(t.w, strings.Join([]string{level, printable(p.File, ""), cell(line), printable(cmp.Or(p.Field, "-"), ""), p.Code, printable(p.Message, "")}, "\t"))
		}
	})
}

// checkFile checks what a path names.
func (m *Main) checkFile(file, kind string) (checked, error) {
	unreadable := func(err error) error {
		return &problem{kind: fault.ConfigInvalid, text: err.Error(), hint: "name a file that can be read"}
	}
	c := checked{File: file, Kind: kind, Problems: []checkProblem{}}
	if info, err := os.Stat(file); file != "-" && (err != nil || info.IsDir() || kind == coreDirectory) {
		switch {
		case err != nil:
			return c, unreadable(err)
		case !info.IsDir() || kind != "" && kind != coreDirectory:
			return c, usage("FILE: %s is no %s", file, kind)
		}
		c.Kind = coreDirectory
		root, err := os.OpenRoot(file)
		if err != nil {
			return c, unreadable(err)
		}
		defer root.Close()
		_, diags := declaration.Load(root.FS())
		for _, d := range diags {
			if d.Code != declaration.CoreLoadFailed || d.Path != "" { // the sum of the others
				c.diagnostic(d)
			}
		}
		return c.judged(), nil
	}
	in := m.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return c, unreadable(err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxConfig+1))
	if err != nil {
		return c, unreadable(err)
	}
	if c.Kind == "" {
		c.Kind = kindOf(file, data)
	}
	if c.Kind == declarationFile {
		name := filepath.ToSlash(file)
		if file == "-" {
			name = "stdin.yaml"
		}
		_, diags := declaration.Check(name, data)
		for _, d := range diags {
			c.diagnostic(d)
		}
		return c.judged(), nil
	}
	c.configuration(data)
	return c.judged(), nil
}

func (c *checked) diagnostic(d declaration.Diagnostic) {
	c.Problems = append(c.Problems, checkProblem{
		File: d.Path, Line: d.Line, Field: d.Field, Code: string(d.Code), Message: d.Message, Warning: d.Warning,
	})
}

func (c checked) judged() checked {
	c.Valid = !slices.ContainsFunc(c.Problems, func(p checkProblem) bool { return !p.Warning })
	return c
}

// configuration checks a configuration, and says which of its approval rules are
// without effect.
func (c *checked) configuration(data []byte) {
	fields := fieldsOf(data)
	config, flaws := readConfig(data)
	for _, f := range flaws {
		c.Problems = append(c.Problems, checkProblem{
			File: c.File, Line: f.Line, Field: fields.at(f.Line, f.Column), Code: string(fault.ConfigInvalid), Message: f.Text,
		})
	}
	if flaws != nil {
		return
	}
	say := func(warning bool, field, message string) {
		c.Problems = append(c.Problems, checkProblem{
			File: c.File, Line: fields.line(field), Field: field, Code: string(fault.ConfigInvalid), Message: message, Warning: warning,
		})
	}
	if n := len(config.Workspaces); n > 1 {
		say(false, "workspaces", fmt.Sprintf("this version serves one, and %d are configured", n))
	}
	a := config.Approvals
	for i, r := range a.Rules {
		for j, over := range a.Rules {
			strictest := authority.Strictest(authority.Policy(r.Approval), authority.Policy(over.Approval))
			if i == j || !over.coversAll(r) || strictest != authority.Policy(over.Approval) ||
				r.Approval == over.Approval && j > i && r.coversAll(over) {
				continue
			}
			say(true, fmt.Sprintf("approvals.rules[%d]", i), fmt.Sprintf("has no effect: rule %d matches all that it matches and is as strict", j))
			break
		}
	}
	if a.Approvers == "none" && (a.Default == "prompt" || slices.ContainsFunc(a.Rules, func(r ApprovalRule) bool { return r.Approval == "prompt" })) {
		say(true, "approvals.approvers", "there is nobody to ask: what says prompt is denied")
	}
}

// coversAll reports whether a rule matches, by its patterns alone, all that another
// one matches.
func (r ApprovalRule) coversAll(o ApprovalRule) bool {
	wider := func(a, b string) bool { return a == "" || a == b || a == "*" && b != "" }
	return wider(r.Server, o.Server) && wider(r.Tool, o.Tool) && wider(r.Capability, o.Capability) && wider(string(r.Risk), string(o.Risk))
}

// declarationFields are those that no configuration has.
var declarationFields = strings.Fields("enabled transport command args env cwd url headers tools risk approval_policy capability connect_timeout_seconds timeout_seconds supports_parallel_tool_calls")

// kindOf tells a declaration from a configuration: by its fields, else by where it is.
func kindOf(file string, data []byte) string {
	var top map[string]yaml.Node
	if yaml.Load(data, &top) == nil {
		for name := range top {
			if slices.Contains(declarationFields, name) {
				return declarationFile
			}
		}
	}
	if len(top) == 0 && filepath.Base(filepath.Dir(file)) == "mcp" {
		return declarationFile
	}
	return configurationFile
}

// fields are the places of the fields of a file.
type fields []field

type field struct {
	name       string
	key, value *yaml.Node
}

// fieldsOf are the fields of a file, the outer ones first; none of one that is no
// YAML.
func fieldsOf(data []byte) (list fields) {
	var docs []yaml.Node
	if yaml.Load(data, &docs, yaml.WithAllDocuments()) != nil {
		return nil
	}
	var walk func(name string, n *yaml.Node)
	walk = func(name string, n *yaml.Node) {
		switch n.Kind {
		case yaml.DocumentNode:
			for _, c := range n.Content {
				walk(name, c)
			}
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				key, value := n.Content[i], n.Content[i+1]
				inner := strings.TrimPrefix(name+"."+key.Value, ".")
				list = append(list, field{name: inner, key: key, value: value})
				walk(inner, value)
			}
		case yaml.SequenceNode:
			for i, item := range n.Content {
				inner := fmt.Sprintf("%s[%d]", name, i)
				list = append(list, field{name: inner, key: item, value: item})
				walk(inner, item)
			}
		}
	}
	for i := range docs {
		walk("", &docs[i])
	}
	return list
}

// at is the field at a place: the one whose value or name begins there, else the
// innermost on the line.
func (list fields) at(line, column int) string {
	var name string
	for _, f := range list {
		for _, n := range []*yaml.Node{f.value, f.key} {
			if n.Line == line && n.Column == column {
				return f.name
			}
		}
		if f.key.Line == line && name == "" {
			name = f.name
		}
	}
	return name
}

// line is where a field is; 0 if it is not there.
func (list fields) line(name string) int {
	for _, f := range list {
		if f.name == name {
			return f.key.Line
		}
	}
	return 0
}
