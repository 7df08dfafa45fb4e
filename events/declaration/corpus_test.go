package declaration_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/redact"
)

// row is one row of the corpus of options, variables, headers and arguments.
type row struct{ kind, name, form string }

func corpus(t *testing.T) (rows []row) {
	t.Helper()
	text, err := os.ReadFile("../../testdata/secret_options.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(strings.TrimRight(line, "\n"), "\t"); !strings.HasPrefix(line, "#") && len(cells) > 2 {
			rows = append(rows, row{cells[0], cells[1], cells[2]})
		}
	}
	if len(rows) < 1000 {
		t.Fatalf("the corpus has %d rows", len(rows))
	}
	return rows
}

const canary = "Canary-0123-xyz"

// forms are the arguments in which a row has the canary for a secret.
func forms(r row) [][]string {
	value := canary
	switch r.form {
	case "uri":
		value = "https://ana:" + canary + "@h.example/x?token=" + canary
	case "pair":
		value = "ana:" + canary
	}
	switch r.kind {
	case "long":
		return [][]string{
			{r.name, value}, {r.name + "=" + value}, {strings.ToUpper(r.name), value}, {strings.ReplaceAll(r.name[2:], "-", "_") + "=" + value},
			{"--" + strings.ReplaceAll(r.name[2:], "-", "_") + "=" + value}, {"npx", "pkg", "--", r.name, value},
		}
	case "short":
		words := strings.Fields(r.name)
		option, program := words[len(words)-1], words[:len(words)-1]
		list := [][]string{
			slices.Concat(program, []string{option, value}), slices.Concat(program, []string{option + "=" + value}),
			slices.Concat(program, []string{"-v", option, value}),
		}
		if !strings.HasPrefix(option, "--") { // what follows a long name at once is part of the name to every program
			list = append(list, slices.Concat(program, []string{option + value}))
		}
		return list
	case "env", "env-suffix", "env-part":
		name := r.name
		if r.kind == "env-suffix" {
			name = "X" + name
		}
		return [][]string{{name + "=" + value}, {"-e", name + "=" + value}, {"-e" + name + "=" + value}, {"--env=" + name + "=" + value}, {"--env", name + "=" + value}}
	case "header", "header-part":
		return [][]string{
			{"--header", r.name + ": " + value}, {"--header=" + r.name + ": Bearer " + value}, {"-H", r.name + ": " + value}, {"-H" + r.name + ":" + value},
			{r.name + ": " + value}, {"curl", "-H" + r.name + ": " + value},
		}
	case "query":
		url := "https://h.example/p?x=1&" + r.name + "=" + value
		return [][]string{{url}, {"--url", url}, {"--url=" + url}, {"--endpoint", url + "#" + value}}
	case "field":
		return [][]string{{"--set", r.name + "=" + value}, {`{"` + r.name + `":"` + value + `"}`}, {"--config={" + r.name + ": " + value + "}"}}
	case "program":
		return [][]string{append(strings.Fields(r.name), value)}
	}
	return nil
}

// Of no row, in no form, is the secret in a preview.
func TestEveryRowOfTheCorpusIsHidden_R64_R65_R66(t *testing.T) {
	t.Parallel()
	tried := 0
	for _, r := range corpus(t) {
		for _, args := range forms(r) {
			tried++
			for _, d := range []declaration.Declaration{stdio(t, args...), program(t, args[0], args[1:]...)} {
				preview := declaration.NewPreview(d, key, authority.Prompt)
				if preview.Command == args[0] { // the command is shown, as it is what is approved
					preview.Command = ""
				}
				data, err := json.Marshal(preview)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(string(data), "Canary") || strings.Contains(string(data), "0123") {
					t.Errorf("%s %s: %q shows %s", r.kind, r.name, args, data)
				}
			}
		}
	}
	if tried < 2000 {
		t.Errorf("%d forms were tried", tried)
	}
}

// program declares a server whose command is a program.
func program(t testing.TB, command string, args ...string) declaration.Declaration {
	t.Helper()
	list, err := json.Marshal(append([]string{}, args...))
	if err != nil {
		t.Fatal(err)
	}
	name, err := json.Marshal(command)
	if err != nil {
		t.Fatal(err)
	}
	return one(t, "command: "+string(name)+"\nargs: "+string(list))
}

// Where a name says that it is a secret, no view of what the server says has it
// either: a server often says how it was started (R120).
func TestSecretsOfArgumentsAreInNoView_R120(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"x", "--token", canary}, {"x", "--token=" + canary}, {"x", "-token", canary}, {"x", "--api_key=" + canary},
		{"mysql", "-p" + canary}, {"/usr/bin/mysql", "-p" + canary}, {"docker", "run", "mysql", "-p" + canary}, {"docker", "login", "-p", canary},
		{"curl", "-u", "ana:" + canary}, {"curl", "-HX-Api-Key: " + canary}, {"sshpass", "-p" + canary}, {"openssl", "enc", "-k", canary},
		{"zip", "-P", canary}, {"xfreerdp", "/p:" + canary}, {"7z.exe", "-p" + canary}, {"redis-cli", "-a", canary},
		{"docker", "run", "-e", "API_TOKEN=" + canary}, {"docker", "run", "--env=MYSQL_PWD=" + canary}, {"env", "SSHPASS=" + canary, "x"},
		{"x", "https://ana:" + canary + "@h.example/"}, {"x", "--url=https://h.example/?token=" + canary}, {"x", "--dsn", "postgres://ana:" + canary + "@h/db"},
		{"x", "--header", "Authorization: Bearer " + canary}, {"x", "X-Api-Key: " + canary}, {"x", "--set", "db.password=" + canary},
		{"x", "--user", "ana:" + canary}, {"x", "--user=ana:" + canary},
	} {
		d := program(t, args[0], args[1:]...)
		r, err := redact.NewRedactor(d.Secrets()...)
		if err != nil {
			t.Fatal(err)
		}
		if v := r.Text(redact.NewRaw("started with " + canary)); strings.Contains(v.Event.String(), canary) {
			t.Errorf("%q: %s", args, v.Event)
		}
	}
}

// What makes a program run whatever it is given, and what leads it elsewhere, is
// flagged in every form (E2, E3).
func TestEveryDangerousArgumentIsFlagged_E2_E3(t *testing.T) {
	t.Parallel()
	for _, r := range corpus(t) {
		switch r.kind {
		case "exec-arg":
			name, arg, _ := strings.Cut(r.name, " ")
			want := "argument " + name + " " + arg
			for _, d := range []declaration.Declaration{
				program(t, name, arg, "x"), program(t, "/usr/bin/"+name, "-y", arg+"=x"), program(t, name+".exe", "--", arg), program(t, "env", name, arg, "x"),
			} {
				if got := declaration.NewPreview(d, key, authority.Prompt).Flags; !slices.Contains(got, want) {
					t.Errorf("%s %q: flags %q", d.Command, d.Args.Reveal(), got)
				}
			}
		case "dangerous-env":
			if declaration.Reserved(r.name) {
				continue // refused as it is read
			}
			d := one(t, "command: x\nenv: {"+r.name+": y}")
			if got := declaration.NewPreview(d, key, authority.Prompt).Flags; !slices.Contains(got, "environment "+r.name) {
				t.Errorf("%s: flags %q", r.name, got)
			}
		}
	}
	for _, d := range []declaration.Declaration{program(t, "npx", "-y", "@acme/docs-server", "--port", "8080"), program(t, "server", "-c", "-e", "--eval")} {
		if got := declaration.NewPreview(d, key, authority.Prompt).Flags; len(got) > 0 {
			t.Errorf("%s %q: flags %q", d.Command, d.Args.Reveal(), got)
		}
	}
}
