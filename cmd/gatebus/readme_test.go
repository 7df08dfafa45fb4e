package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestReadmeCommandsParse: each gatebus command that the README shows is one of
// the verbs, with flags and arguments that it takes.
func TestReadmeCommandsParse(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join(repoRoot, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := shellCommands(string(data))
	if len(commands) == 0 {
		t.Error("the README shows no gatebus command")
	}
	for _, c := range commands {
		if err := parses(c); err != nil {
			t.Errorf("README.md: %s\n%v", strings.Join(c, " "), err)
		}
	}
}

// TestWrongReadmeCommandsAreFound keeps the test above honest.
func TestWrongReadmeCommandsAreFound(t *testing.T) {
	t.Parallel()
	text := "Text with `gatebus nope` in it.\n```sh\n" +
		"$ gatebus server list -o json | head   # a comment\n" +
		"export X=1; GATEBUS_HOME=/tmp/h gatebus tool call docs__read \\\n    --as ana --args '{\"a b\": 1}' > out\n" +
		"./gatebus approve \"$ID\" && go run ./cmd/gatebus grant add ana mcp.call:docs &\n" +
		"output of gatebus is not a command\n```\n" +
		"```json\ngatebus nope\n```\n" +
		"```\ngatebus nope\ngatebus server list more\ngatebus server list --nope\ngatebus server\n```\n"
	want := [][]string{
		{"server", "list", "-o", "json"},
		{"tool", "call", "docs__read", "--as", "ana", "--args", `{"a b": 1}`},
		{"approve", "$ID"}, {"grant", "add", "ana", "mcp.call:docs"},
		{"nope"}, {"server", "list", "more"}, {"server", "list", "--nope"}, {"server"},
	}
	got := shellCommands(text)
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Fatalf("commands %q, want %q", got, want)
	}
	for i, c := range got {
		if err := parses(c); (err == nil) != (i < 4) {
			t.Errorf("%q: %v", c, err)
		}
	}
}

var (
	shellBlock = regexp.MustCompile("(?ms)^```(?:sh|bash|console|shell)?\n(.*?)^```$")
	otherBlock = regexp.MustCompile("(?ms)^```[a-z]+\n.*?^```$")
	// A word: quoted pieces and others, up to a blank or what ends a command.
	shellWord = regexp.MustCompile(`^(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\;&|<>])+`)
	assign    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
	isGatebus = regexp.MustCompile(`(^|/)gatebus$`)
)

// shellCommands are the arguments of each gatebus command in the shell blocks of
// a Markdown text.
func shellCommands(markdown string) (commands [][]string) {
	markdown = otherBlock.ReplaceAllStringFunc(markdown, func(block string) string {
		if shellBlock.MatchString(block) {
			return block
		}
		return ""
	})
	for _, block := range shellBlock.FindAllStringSubmatch(markdown, -1) {
		for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", " ")) {
			for _, words := range simpleCommands(strings.TrimPrefix(strings.TrimSpace(line), "$ ")) {
				for len(words) > 0 && assign.MatchString(words[0]) {
					words = words[1:]
				}
				if len(words) > 2 && words[0] == "go" && words[1] == "run" {
					words = words[2:]
				}
				if len(words) > 0 && isGatebus.MatchString(words[0]) {
					commands = append(commands, words[1:])
				}
			}
		}
	}
	return commands
}

// simpleCommands splits a line at what joins commands, and each into words. What
// follows a redirection belongs to no command.
func simpleCommands(line string) (commands [][]string) {
	var words []string
	end := func() {
		if len(words) > 0 {
			commands = append(commands, words)
		}
		words = nil
	}
	for skip := false; line != ""; {
		switch {
		case strings.ContainsRune(" \t", rune(line[0])):
			line = line[1:]
		case line[0] == '#':
			line = ""
		case strings.ContainsRune("<>", rune(line[0])):
			if n := len(words); n > 0 && (words[n-1] == "2" || words[n-1] == "1") {
				words = words[:n-1]
			}
			skip, line = true, strings.TrimLeft(line[1:], ">&")
		case strings.ContainsRune(";&|", rune(line[0])):
			end()
			skip, line = false, line[1:]
		default:
			w := shellWord.FindString(line)
			if w == "" { // an open quote
				return commands
			}
			line = line[len(w):]
			if !skip {
				words = append(words, unquote(w))
			}
			skip = false
		}
	}
	end()
	return commands
}

// unquote takes the quotes off a word.
func unquote(w string) string {
	var b strings.Builder
	for quote := byte(0); w != ""; w = w[1:] {
		switch c := w[0]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote != '\'' && c == '\\' && len(w) > 1:
			w = w[1:]
			b.WriteByte(w[0])
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// parses tells whether the program would take a command line.
func parses(args []string) error {
	m := Main{Getenv: func(string) string { return "" }}
	root := m.root()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err == pflag.ErrHelp {
		return nil
	} else if err != nil {
		return err
	}
	if cmd.HasSubCommands() && cmd != root {
		return fmt.Errorf("%s needs a verb", cmd.CommandPath())
	}
	if cmd == root && cmd.Flags().NArg() > 0 {
		return fmt.Errorf("there is no verb %q", cmd.Flags().Arg(0))
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}
