package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// limit bounds one request.
const limit = time.Minute

// lists are the methods whose result is a list, with the member that has it.
var lists = map[string]string{
	"tools/list": "tools", "resources/list": "resources", "resources/templates/list": "resourceTemplates", "prompts/list": "prompts",
}

// keys are the members that name what is in a list.
var keys = map[string]string{"tools": "name", "resources": "uri", "resourceTemplates": "uriTemplate", "prompts": "name"}

// A row is one request. A call names its tool as the server does, first among the
// members with that name; ROOT stands for the directory of the files.
type row struct{ server, method, params string }

// table has the fixed rows, those of a small show first for each server. What
// they answer depends on nothing but the files and the rows before.
var table = []row{
	{"everything", "tools/list", `{}`},
	{"filesystem", "tools/list", `{}`},
	{"git", "tools/list", `{}`},
	{"odd", "tools/list", `{}`},

	{"everything", "resources/list", `{}`},
	{"everything", "resources/templates/list", `{}`},
	{"everything", "resources/read", `{"uri":"test://static-text"}`},
	{"everything", "resources/read", `{"uri":"test://static-binary"}`},
	{"everything", "resources/read", `{"uri":"test://template/12\u0033/data"}`},
	{"everything", "prompts/list", `{}`},
	{"everything", "prompts/get", `{"name":"test_simple_prompt"}`},
	{"everything", "prompts/get", `{"name":"test_prompt_with_arguments","arguments":{"arg1":"é\u2028","arg2":"\/"}}`},
	{"everything", "prompts/get", `{"name":"test_prompt_with_embedded_resource","arguments":{"resourceUri":"test://example"}}`},
	{"everything", "prompts/get", `{"name":"test_prompt_with_image"}`},
	{"everything", "completion/complete", `{"ref":{"type":"ref/prompt","name":"test_prompt_with_arguments"},"argument":{"name":"arg1","value":"par"}}`},
	{"git", "resources/list", `{}`},
	{"git", "prompts/list", `{}`},
	{"git", "prompts/get", `{"name":"git_wrapup"}`},
	{"git", "resources/read", `{"uri":"git://working-directory"}`},
}

// call makes a row of table.
func call(server, tool, arguments string) {
	table = append(table, row{server, "tools/call", `{"name":` + quote(tool) + `,"arguments":` + arguments + `}`})
}

// small is how many calls of each server a small show makes.
var small = map[string]int{"everything": 8, "filesystem": 9, "git": 7, "odd": 16}

func init() {
	for _, tool := range []string{
		"test_simple_text", "test_image_content", "test_audio_content", "test_embedded_resource", "test_multiple_content_types",
		"test_error_handling", "test_missing_capability",
		"test_tool_with_logging", "test_streaming_elicitation", "test_logging_tool",
	} {
		call("everything", tool, `{}`)
	}
	call("everything", "json_schema_2020_12_tool", `{"address":{"street":"a\u2028b","city":"é"},"phone":"1","name":"\/"}`)
	call("everything", "json_schema_2020_12_tool", `{"unknown":9007199254740993}`)
	call("everything", "test_x_mcp_header", `{"level":1.0}`)
	call("everything", "test_x_mcp_header", `{"level":9007199254740993}`)
	call("everything", "test_sampling", `{"prompt":1}`)

	for _, c := range [][2]string{
		{"read_text_file", `{"path":"ROOT/fixed/a.txt"}`},
		{"get_file_info", `{"path":"ROOT/fixed/b/c.json"}`},
		{"read_media_file", `{"path":"ROOT/fixed/b/d.png"}`},
		{"directory_tree", `{"path":"ROOT"}`},
		{"write_file", `{"path":"ROOT/desk/new.txt","content":"a\u2028 \/ é \ud83d\ude00"}`},
		{"read_text_file", `{"path":"ROOT/desk/new.txt"}`},
		{"edit_file", `{"path":"ROOT/desk/edit.txt","edits":[{"oldText":"a line","newText":"<b>\u0041</b>"}]}`},
		{"read_text_file", `{"path":"/etc/passwd"}`},
		{"read_text_file", `{"path":7.0}`},
		{"list_allowed_directories", `{}`},
		{"read_text_file", `{"path":"ROOT/fixed/a.txt","head":1}`},
		{"read_text_file", `{"path":"ROOT/fixed/a.txt","tail":1e0}`},
		{"read_text_file", `{"path":"ROOT/fixed/a.txt","tail":1,"head":1}`},
		{"read_text_file", `{"path":"ROOT/fixed/empty.txt"}`},
		{"read_file", `{"path":"ROOT/fixed/b/c.json"}`},
		{"read_multiple_files", `{"paths":["ROOT/fixed/a.txt","ROOT/fixed/none","ROOT/fixed/b/c.json"]}`},
		{"list_directory", `{"path":"ROOT/fixed"}`},
		{"list_directory_with_sizes", `{"path":"ROOT/fixed","sortBy":"size"}`},
		{"directory_tree", `{"path":"ROOT","excludePatterns":["b"]}`},
		{"search_files", `{"path":"ROOT","pattern":"**/*.txt"}`},
		{"create_directory", `{"path":"ROOT/desk/d/e"}`},
		{"move_file", `{"source":"ROOT/desk/new.txt","destination":"ROOT/desk/d/moved.txt"}`},
		{"move_file", `{"source":"ROOT/desk/new.txt","destination":"ROOT/desk/d/moved.txt"}`},
		{"edit_file", `{"path":"ROOT/desk/edit.txt","edits":[{"oldText":"not there","newText":""}]}`},
		{"edit_file", `{"dryRun":true,"path":"ROOT/desk/edit.txt","edits":[{"oldText":"another","newText":"one more"}]}`},
		{"list_directory", `{"path":"ROOT/desk/d"}`},
	} {
		call("filesystem", c[0], c[1])
	}

	for _, c := range [][2]string{
		{"git_init", `{"path":"ROOT/desk/repo"}`},
		{"git_status", `{"path":"ROOT/desk/repo"}`},
		{"git_add", `{"path":"ROOT/desk/repo","paths":["."]}`},
		{"git_commit", `{"path":"ROOT/desk/repo","message":"first \u2028 é"}`},
		{"git_log", `{"path":"ROOT/desk/repo"}`},
		{"git_show", `{"path":"ROOT/desk/repo","object":"HEAD"}`},
		{"git_status", `{"path":"ROOT/desk/none"}`},
		{"git_branch", `{"path":"ROOT/desk/repo","mode":"create","branchName":"side"}`},
		{"git_branch", `{"path":"ROOT/desk/repo"}`},
		{"git_checkout", `{"path":"ROOT/desk/repo","target":"side"}`},
		{"git_tag", `{"path":"ROOT/desk/repo","mode":"create","tagName":"v1"}`},
		{"git_tag", `{"path":"ROOT/desk/repo","mode":"list"}`},
		{"git_blame", `{"path":"ROOT/desk/repo","filePath":"README.md"}`},
		{"git_diff", `{"path":"ROOT/desk/repo"}`},
		{"git_remote", `{"path":"ROOT/desk/repo","mode":"list"}`},
		{"git_reset", `{"path":"ROOT/desk/repo","mode":"soft"}`},
		{"git_clean", `{"path":"ROOT/desk/repo","dryRun":true}`},
		{"git_stash", `{"path":"ROOT/desk/repo","mode":"list"}`},
		{"git_reflog", `{"path":"ROOT/desk/repo"}`},
		{"git_merge", `{"path":"ROOT/desk/repo","branch":"none"}`},
		{"git_worktree", `{"path":"ROOT/desk/repo","mode":"list"}`},
		{"git_show", `{"path":"ROOT/desk/repo","object":"none"}`},
		{"git_log", `{"path":"ROOT/desk/repo","maxCount":0}`},
		{"git_wrapup_instructions", `{"acknowledgement":"y"}`},
	} {
		call("git", c[0], c[1])
	}

	table = append(table,
		row{"odd", "tools/call", `{"z":1.0,"name":"params","arguments":{"b":1,"a":[ ]},"vendor":{"n":9007199254740993},"_meta":{"vendor/x":1e400}}`},
		row{"odd", "tools/call", `{"name":"count","arguments":{},"_meta":{"progressToken":"\u0061 token"}}`},
		row{"odd", "tools/call", `{"name":"secret","arguments":{}}`},
	)
	for _, c := range []string{
		"unknown type", "unknown fields", "numbers", "order", "lines", "escapes", "error", "error order", "is error", "null", "array",
		"space", "deep", "resource", "image", "number", "empty", "nothing", "twice", "large", "error shape", "error null",
		"error code", "error large", "error half", "no such case",
	} {
		call("odd", "give", `{"case":`+quote(c)+`}`)
	}
}

// choose takes the rows of a show with that many calls; what the table lacks is
// made: arguments that come back as they are.
func choose(servers []server, calls int, root string) (rows []row) {
	taken := map[string]int{}
	add := func(r row) {
		r.params = strings.ReplaceAll(r.params, "ROOT", root)
		rows = append(rows, r)
	}
	made := 0
	for _, s := range servers {
		for _, r := range table {
			if r.server != s.name {
				continue
			}
			if r.method == "tools/call" {
				if calls <= 40 && taken[s.name] == small[s.name] {
					continue
				}
				taken[s.name]++
				made++
			}
			add(r)
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2)) // always the same
	for ; made < calls; made++ {
		add(row{"odd", "tools/call", fmt.Sprintf(`{"arguments":{"n":%d,"v":%s},"name":"mirror"}`, made, value(rnd, 4))})
	}
	return rows
}

// value makes a JSON value with what is hard to keep.
func value(rnd *rand.Rand, depth int) string {
	pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
	text := func() string {
		var b strings.Builder
		for range rnd.IntN(6) {
			b.WriteString(pick("a", "é", `\u00e9`, "😀", `\ud83d\ude00`, lines, `\u2028`, `\/`, "/", `\"`, `\\`, `\u0000`, `\n`, "<&>", "e\u0301"))
		}
		return `"` + b.String() + `"`
	}
	if depth == 0 {
		return pick("0", "-0", "1.0", "1e400", "9007199254740993", "1E+2", "0.10", "null", "true", "{}", "[ ]", text(), text())
	}
	var parts []string
	object := rnd.IntN(2) == 0
	for i := range rnd.IntN(5) {
		v := value(rnd, depth-1)
		if object {
			v = fmt.Sprintf(`"%s%d"%s%s`, pick("z", "a", "é", `\u0061`, lines), i, pick(":", " : "), v)
		}
		parts = append(parts, v)
	}
	inner := strings.Join(parts, pick(",", ", ", " ,\t"))
	if object {
		return "{" + inner + "}"
	}
	return "[" + inner + "]"
}

// lines are separators that JSON allows in strings.
const lines = "\u2028\u2029"
