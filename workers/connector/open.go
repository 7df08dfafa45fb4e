package connector

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/declaration"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/hidden"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/cores"
	"github.com/gatebus/gatebus/workers/live"
	"github.com/gatebus/gatebus/workers/stdio"
)

// wake is how long a server behind HTTP may take for the first answer. Requests wake
// some of them, and one that does not know the first request says so.
const wake = 10 * time.Second

// start does steps 6 to 8 of the gate and reports what was discovered.
func (c *Connector) start(ctx context.Context, ws string, key live.Key, s connection.State) (*live.Conn, connection.Opened, error) {
	opened := events.ConnectionOpened{Runtime: c.Runtime, Generation: key.Generation}
	// What was found of the program is told of a failure too.
	fail := func(err error) (*live.Conn, connection.Opened, error) {
		return nil, connection.Opened{Opened: opened}, err
	}
	d, ok := c.declared(s)
	if !ok {
		return fail(&stepError{connection.StageSpawn, fault.InstallationUnavailable, redact.Static("the declaration changed or is gone")})
	}
	ctx, cancel := context.WithTimeout(ctx, d.ConnectTimeout)
	defer cancel()
	timedOut := func(stage string, err error) error {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &stepError{stage, fault.ConnectTimeout, redact.Static("the server did not answer within connect_timeout_seconds")}
		}
		var f *fault.Fault
		if errors.As(err, &f) {
			return &stepError{stage, f.Kind, f.Text}
		}
		return err
	}

	d, err := c.resolve(ctx, d)
	if err != nil {
		return fail(timedOut(connection.StageInterpolation, err))
	}
	secrets, err := redact.NewRedactor(d.Secrets()...)
	if err != nil {
		return fail(&stepError{connection.StageInterpolation, fault.RedactionFailed, redact.Static("the secrets of the server cannot be told apart")})
	}
	options := live.Options{
		Name: "gatebus", Version: c.Version, Parallel: d.Parallel, Redactor: secrets,
		Eras: &c.eras, Server: d.Fingerprint,
		OnListChanged: func(conn *live.Conn) { c.refresh(ws, key, s, conn) },
		Asks:          c.asks(key, s, d),
	}
	if c.Refused != nil {
		options.OnRefused = func(conn *live.Conn, method string, often bool) { c.Refused(key, conn, method, often) }
	}
	if c.Logged != nil {
		options.OnLog = func(conn *live.Conn, n live.Notice) { c.Logged(key, conn, n) }
	}
	var transport live.Transport
	var started *stdio.Process // the last one; nil behind HTTP
	if d.Transport == declaration.StreamableHTTP {
		transport = c.client(ws, key.Connection, s, d)
		options.Patience = wake
	} else {
		options.Restart = func(ctx context.Context) (live.Transport, error) {
			digest, err := c.program(ws, key, s)
			if err != nil {
				return nil, err
			}
			process, env, err := c.spawn(ctx, d, digest, func(program, digest string) {
				opened.Program, opened.ProgramDigest = filepath.Base(program), digest
			})
			if err != nil {
				return nil, err
			}
			started = process
			c.collect(ws, key, s, process, secrets)
			opened.EnvNames = names(env)
			return process, nil
		}
		if transport, err = options.Restart(ctx); err != nil {
			return fail(timedOut(connection.StageSpawn, err))
		}
	}
	conn, err := live.Open(ctx, transport, options)
	if err != nil {
		return fail(withStderr(timedOut(connection.StageInitialize, err), started, secrets))
	}
	discovery, err := c.discover(ctx, ws, key, s, conn)
	if err != nil {
		err = timedOut(connection.StageList, err)
		_ = conn.Close(context.WithoutCancel(ctx)) // bounded by itself
		return fail(withStderr(err, started, secrets))
	}
	info := conn.Info()
	opened.Protocol = info.Protocol
	opened.ServerName = secrets.Line(redact.NewRaw(info.Name)).Event
	opened.ServerVersion = secrets.Line(redact.NewRaw(info.Version)).Event
	return conn, connection.Opened{Opened: opened, Discovery: discovery}, nil
}

// resolve gives a server the values that it is started with: of the environment of the
// host where it is declared (R72), and of the keystore where it was installed (R86).
func (c *Connector) resolve(ctx context.Context, d cores.Server) (cores.Server, error) {
	var unread error
	resolved, missing := d.Resolve(c.Lookup, func(item string) (v redact.Raw[string], ok bool) {
		if c.Secrets == nil || unread != nil {
			return v, false
		}
		v, ok, unread = c.Secrets(ctx, item)
		return v, ok
	})
	switch {
	case unread != nil:
		return d, unread
	case len(missing) > 0 && d.Installed:
		return d, &stepError{connection.StageInterpolation, fault.MissingSecret, redact.Name("the keystore has no value for " + strings.Join(missing, ", "))}
	case len(missing) > 0:
		return d, &stepError{connection.StageInterpolation, fault.MissingEnvReference, redact.Name("not set: " + strings.Join(missing, ", "))}
	}
	d.Declaration = resolved
	return d, nil
}

// program is the digest of the program that the approval of a connection covers, empty
// where it was not started yet. A private one starts nothing but what the shared one
// has, and under the same approval: program_changed says that it is gone.
func (c *Connector) program(ws string, key live.Key, s connection.State) (string, error) {
	own := c.Model.Connections.Get(ws, key.Connection)
	if s.Attachment == "" {
		return own.Standing.Program, nil
	}
	digest := own.Started(c.shared(ws, s))
	if digest == "" {
		return "", fault.New("connector.program", fault.ProgramChanged, redact.Static("the approval of the connection that the session shares is not what it was"))
	}
	return digest, nil
}

// spawn starts the program of a server, which has the digest where there is one, with
// nothing of our environment but what is said here. found is told of it before.
func (c *Connector) spawn(ctx context.Context, d cores.Server, digest string, found func(program, digest string)) (_ *stdio.Process, env []string, err error) {
	dir, err := c.cwd(d)
	if err != nil {
		return nil, nil, err
	}
	place := filepath.Join(c.Home, "mcp", fileName(d.ServerID))
	home, tmp := filepath.Join(place, "home"), filepath.Join(place, "tmp")
	declared := map[string]string{}
	for name, v := range d.Env {
		declared[name] = v.Reveal()
	}
	env = declaration.ChildEnv(c.Lookup, home, tmp, declared)
	process, err := stdio.Start(ctx, stdio.Spec{
		Command: d.Command, Digest: digest, Args: d.Args.Reveal(), Env: env, Dir: dir, Home: home, Tmp: tmp, MaxFrame: c.MaxFrame,
		Found: found,
	})
	return process, env, err
}

// discover lists what the server has and stores the definitions (R173). A list of
// tools that fails fails the discovery, any other one is empty then (R166).
func (c *Connector) discover(ctx context.Context, ws string, key live.Key, s connection.State, conn *live.Conn) (connection.Discovery, error) {
	tools, dropped, err := conn.List(ctx, live.Tools)
	if err != nil {
		return connection.Discovery{}, err
	}
	d := connection.Discovery{
		Approval: "a-" + ulid.Make().String(), At: time.Now(),
		OnChange: c.Model.Policies.Get(ws, ws).OnChange(), Dropped: uint32(dropped), Suspicious: map[string][]string{},
	}
	version := sha256.New()
	var snapshot connection.Snapshot
	for _, t := range tools {
		views := conn.Redactor().JSON(redact.NewRaw([]byte(t.Definition)))
		if views.Failed || unspeakable(conn.Redactor(), t.Name) {
			d.Dropped++
			continue
		}
		snapshot.Tools = append(snapshot.Tools, connection.SnapshotTool{Name: t.Name, Digest: t.Digest, Definition: connection.Definition(views.Model.String())})
		d.Tools = append(d.Tools, events.ToolDigest{Tool: t.Name, Digest: t.Digest})
		if classes := hidden.JSON(t.Definition); len(classes) > 0 {
			d.Suspicious[t.Name] = classes
		}
		version.Write([]byte(t.Digest))
	}
	d.Covered = c.covered(ws, s, d.Tools)
	if told := conn.Info().Instructions; told != "" {
		d.Instructions, d.Orders = digest([]byte(told)), hidden.Text(told)
		snapshot.Instructions = d.Instructions
	}
	if err := c.beside(ctx, conn, &d, &snapshot); err != nil {
		return connection.Discovery{}, err
	}
	c.previews(ctx, c.Model.Connections.Get(ws, key.Connection), conn, &d, snapshot.Tools)
	fmt.Fprint(version, d.ResourcesDigest, d.PromptsDigest)
	d.Catalog = "sha256:" + hex.EncodeToString(version.Sum(nil))
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // the definitions are the server's bytes
	if err := enc.Encode(snapshot); err != nil {
		return d, err
	}
	d.Blob, err = c.Bus.PutBlob(ctx, body.Bytes())
	return d, err
}

// besideTime bounds the lists beside that of tools: a server that never answers
// one has its tools all the same.
const besideTime = 5 * time.Second

// beside lists what there is beside tools.
func (c *Connector) beside(ctx context.Context, conn *live.Conn, d *connection.Discovery, snapshot *connection.Snapshot) error {
	bounded, cancel := context.WithTimeout(ctx, besideTime)
	defer cancel()
	lists := []live.List{live.Resources, live.Templates, live.Prompts}
	items, dropped, errs := make([][]live.Item, len(lists)), make([]int, len(lists)), make([]error, len(lists))
	var asking sync.WaitGroup
	for i, what := range lists {
		asking.Go(func() { items[i], dropped[i], errs[i] = conn.List(bounded, what) })
	}
	asking.Wait()
	digests := make([][]byte, len(lists))
	for i, into := range []*[]connection.SnapshotItem{&snapshot.Resources, &snapshot.Templates, &snapshot.Prompts} {
		switch err := errs[i]; {
		case fault.Is(err, fault.ListToolsFailed), err != nil && bounded.Err() != nil && ctx.Err() == nil:
			d.Failed = append(d.Failed, lists[i].Name)
		case err != nil:
			return err
		}
		d.Dropped += uint32(dropped[i])
		for _, item := range items[i] {
			views := conn.Redactor().JSON(redact.NewRaw([]byte(item.Definition)))
			if views.Failed || unspeakable(conn.Redactor(), item.Name) {
				d.Dropped++
				continue
			}
			d.Flags = flagged(conn.Redactor(), d.Flags, lists[i].Name, item.Name, hidden.JSON(item.Definition))
			*into = append(*into, connection.SnapshotItem{Name: item.Name, Definition: connection.Definition(views.Model.String())})
			digests[i] = append(digests[i], item.Digest...)
		}
	}
	d.Resources, d.Templates, d.Prompts = uint32(len(snapshot.Resources)), uint32(len(snapshot.Templates)), uint32(len(snapshot.Prompts))
	d.ResourcesDigest, d.PromptsDigest = digest(digests[0], digests[1]), digest(digests[2])
	return nil
}

// unspeakable reports whether there is a secret in a name. Names are stored as they are,
// so what has such a one is left out; nobody could ask for it by what views show.
func unspeakable(r *redact.Redactor, name string) bool {
	return r.Text(redact.NewRaw(name)).Model.String() != name
}

// maxFlags is how many of the flags beside those of tools are recorded.
const maxFlags = 1000

// flagged adds the flag of a definition in which there is suspicious text.
func flagged(r *redact.Redactor, flags []events.ItemFlag, list, name string, classes []string) []events.ItemFlag {
	if len(classes) == 0 || len(flags) >= maxFlags {
		return flags
	}
	return append(flags, events.ItemFlag{List: list, Name: r.Line(redact.NewRaw(name)).Event, Reasons: classes})
}

// digest is that of lists; empty where nothing is listed.
func digest(lists ...[]byte) string {
	if len(bytes.Join(lists, nil)) == 0 {
		return ""
	}
	sum := sha256.Sum256(bytes.Join(lists, []byte{0}))
	return hex.EncodeToString(sum[:])
}

// relist bounds a discovery after the first one.
const relist = time.Minute

// refresh lists everything again after the server said that something changed.
func (c *Connector) refresh(ws string, key live.Key, s connection.State, conn *live.Conn) {
	// A server may say so on every list (bug-reports #30): collect a burst, and
	// never ask more often than this.
	select {
	case <-time.After(settle):
	case <-conn.Done():
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), relist)
	defer cancel()
	go func() {
		select {
		case <-conn.Done(): // closing waits for us
			cancel()
		case <-ctx.Done():
		}
	}()
	// A notice may come before the opening is in the log, which takes no other
	// discovery until then.
	if state, err := c.Model.Connections.Wait(ctx, ws, key.Connection, func(s connection.State) bool {
		return s.Phase != connection.Opening || s.Generation != key.Generation
	}); err != nil || state.Phase != connection.Open || state.Generation != key.Generation {
		return
	}
	discovery, err := c.discover(ctx, ws, key, s, conn)
	if err == nil {
		_, err = c.Model.Connections.Dispatch(ctx, ws, key.Connection, c.meta(key.Connection, s), connection.Discovered{
			Generation: key.Generation, Discovery: discovery,
		})
	}
	select {
	case <-conn.Done():
		return
	default:
	}
	if err != nil && !fault.Is(err, fault.RuntimeNotLive) {
		c.Log.Warn("what a server has could not be listed again", "connection", key.Connection, "error", err)
		c.undiscovered(ws, key, s, err)
	}
}

// undiscovered records that a discovery after the first one failed.
func (c *Connector) undiscovered(ws string, key live.Key, s connection.State, err error) {
	failed := connection.Undiscovered{Generation: key.Generation, Kind: string(fault.ListToolsFailed)}
	switch f, ok := errors.AsType[*fault.Fault](err); {
	case fault.Is(err, fault.FrameTooLarge):
		failed.Kind, failed.Message = string(fault.CatalogTooLarge), tooLarge
	case ok:
		failed.Kind, failed.Message = string(f.Kind), f.Text
	case errors.Is(err, context.DeadlineExceeded):
		failed.Kind = string(fault.TimedOut)
	}
	ctx, cancel := context.WithTimeout(context.Background(), relist)
	defer cancel()
	if _, err := c.Model.Connections.Dispatch(ctx, ws, key.Connection, c.meta(key.Connection, s), failed); err != nil && !fault.Is(err, fault.RuntimeNotLive) {
		c.Log.Warn("a discovery that failed was not recorded", "connection", key.Connection, "error", err)
	}
}

// tooLarge says why a discovery is not in the log.
var tooLarge = redact.Static("the names of what the server lists are more than an event holds")

// preview is what a person sees before saying yes, and its digest (R63).
func preview(d cores.Server, key []byte, policy string, judged *events.UrlDecision, swapped bool) (redact.EventText, string) {
	p := declaration.NewPreview(d.Declaration, key, authority.Policy(policy))
	if swapped {
		p.Flags = append(p.Flags, "the file of the program has changed since it was approved")
	}
	if judged != nil {
		p.URLPolicy, _ = json.Marshal(map[string]any{ // strings and a list of them
			"allowed": judged.Allowed, "reason": judged.Reason, "addresses": judged.Addresses, "policy": judged.Policy,
		})
	}
	body, err := json.Marshal(p)
	if err != nil {
		return redact.Static(`{"redaction":"<redaction-failed>"}`), ""
	}
	sum := sha256.Sum256(body)
	// A preview holds names, shapes and digests; what it takes from the declaration
	// as text goes through the redactor all the same. Not for a value that only its
	// place makes a secret: a variable with the command as its value would hide what is
	// to be approved.
	secrets := slices.DeleteFunc(d.Secrets(), func(s redact.Secret) bool {
		kind, _, _ := strings.Cut(s.Source, ":")
		return kind != "mcp.url" && kind != "mcp.arg" && !redact.SensitiveName(s.Name)
	})
	r, err := redact.NewRedactor(secrets...)
	if err != nil {
		return redact.Static(`{"redaction":"<redaction-failed>"}`), ""
	}
	return r.JSON(redact.NewRaw(body)).Event, hex.EncodeToString(sum[:])
}

// names are the variables of an environment without their values.
func names(env []string) []string {
	out := make([]string, len(env))
	for i, e := range env {
		out[i], _, _ = strings.Cut(e, "=")
	}
	return out
}

// fileName makes a directory name of a server id, which may hold blanks and
// dots but starts with a letter or digit (R22).
func fileName(id string) string { return strings.ReplaceAll(id, " ", "%20") }

// expandHome replaces a leading ~ by the host's home.
func expandHome(dir string, lookup func(string) (string, bool)) string {
	if dir == "~" || strings.HasPrefix(dir, "~/") {
		if home, ok := lookup("HOME"); ok {
			return filepath.Join(home, strings.TrimPrefix(dir, "~"))
		}
	}
	return dir
}
