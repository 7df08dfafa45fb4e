package client_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus/rpc"
	"github.com/gatebus/gatebus/events/fault"
)

// program is the gatebus of this tree, built.
func program(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "gatebus")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/gatebus").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return bin
}

// Plain requests of a NATS client that knows nothing of Gatebus do all that a host
// and an operator do, as the package doc says.
func TestPlainRequestsAreEnough(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	up := exec.Command(program(t), "up", "--demo", "-o", "json", "--home", home, "--listen", "127.0.0.1:0")
	up.Dir = t.TempDir()
	up.Env = []string{"HOME=" + up.Dir, "PATH=" + os.Getenv("PATH")}
	out, err := up.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = up.Process.Signal(os.Interrupt)
		_ = up.Wait()
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var ready struct {
		Ready bool
		NATS  string
	}
	if err := json.Unmarshal(line, &ready); err != nil || !ready.Ready {
		t.Fatalf("%s: %v", line, err)
	}
	creds := filepath.Join(home, "run", "local.creds")
	nc, err := nats.Connect(ready.NATS, nats.UserCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	pushed := make(chan *nats.Msg, 100)
	if _, err := nc.ChanSubscribe("gatebus.default.ntf.local.>", pushed); err != nil {
		t.Fatal(err)
	}

	again := func(command, method, params string, into any) *rpc.Error {
		t.Helper()
		m := nats.NewMsg("gatebus.default.cmd.local." + strings.ReplaceAll(method, "/", "."))
		m.Header.Set("Gb-Command", command)
		m.Data = []byte(params)
		reply, err := nc.RequestMsg(m, 30*time.Second)
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		if reply.Header.Get("Nats-Service-Error-Code") != "" {
			e := new(rpc.Error)
			if err := json.Unmarshal(reply.Data, e); err != nil {
				t.Fatalf("%s: %s", method, reply.Data)
			}
			return e
		}
		if err := json.Unmarshal(reply.Data, into); err != nil {
			t.Fatalf("%s: %s", method, reply.Data)
		}
		return nil
	}
	ask := func(method, params string, into any) {
		t.Helper()
		if e := again(ulid.Make().String(), method, params, into); e != nil {
			t.Fatalf("%s: %+v", method, e)
		}
	}

	var session struct{ Session string }
	ask("session/start", `{"label":"plain","principal":"demo"}`, &session)
	var turn struct {
		Turn  string
		Tools []struct{ Name string }
	}
	ask("turn/prepare", `{"session":"`+session.Session+`","principal":"demo","include_implicit":true}`, &turn)
	var pending struct {
		Approvals []struct{ ID, Action, Principal string }
	}
	for len(turn.Tools) == 0 { // the demo server waits for a person
		ask("approvals/list", `{}`, &pending)
		for _, a := range pending.Approvals {
			ask("approvals/decide", `{"id":"`+a.ID+`","decision":"allow"}`, &struct{}{})
		}
		ask("turn/prepare", `{"session":"`+session.Session+`","principal":"demo","include_implicit":true}`, &turn)
	}
	var name string
	for _, tool := range turn.Tools {
		if strings.HasSuffix(tool.Name, "__echo") {
			name = tool.Name
		}
	}
	call := `{"turn":"` + turn.Turn + `","name":"` + name + `","arguments":{"text":"plain"},"principal":"demo"}`
	var reply struct {
		Status string
		Call   string
		Result json.RawMessage
	}
	command := ulid.Make().String()
	if e := again(command, "tool/call", call, &reply); e != nil || reply.Status != "succeeded" || !strings.Contains(string(reply.Result), "plain") {
		t.Errorf("%+v %+v", reply, e)
	}
	var rows struct {
		Rows []struct{ Name, Principal, Actor string }
	}
	ask("audit/list", `{"name":"call_started"}`, &rows)
	if len(rows.Rows) != 1 || rows.Rows[0].Principal != "demo" || rows.Rows[0].Actor != "local" {
		t.Errorf("%+v", rows)
	}
	var info struct {
		Workspace string
		Commits   uint64
	}
	ask("bus/info", ``, &info)
	if info.Workspace != "default" || info.Commits == 0 {
		t.Errorf("%+v", info)
	}
	var news struct {
		Notifications []struct {
			Seq    uint64
			Method string
		}
	}
	ask("notifications/list", `{"after":0,"topics":["mcp/server/catalog_changed"]}`, &news)
	if len(news.Notifications) != 1 {
		t.Errorf("%+v", news)
	}
	for catalog := false; !catalog; {
		select {
		case m := <-pushed:
			catalog = m.Subject == "gatebus.default.ntf.local.mcp.server.catalog_changed" && m.Header.Get("Gb-Seq") != "" && m.Header.Get("Gb-Index") != ""
		case <-time.After(10 * time.Second):
			t.Fatal("the catalog is not pushed")
		}
	}
	if e := again(ulid.Make().String(), "turn/end", `{"turns":"x"}`, nil); e == nil || e.Data.Kind != fault.UnknownArgument || !strings.Contains(e.Message, "turns") {
		t.Errorf("%+v", e)
	}
	if _, err := nc.Request("gatebus.default.cmd.local.no.such.method", nil, 10*time.Second); err != nats.ErrNoResponders {
		t.Errorf("no such method: %v", err)
	}
}
