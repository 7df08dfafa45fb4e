package cores_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/bustest"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/core"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/workers/cores"
)

const home = "h-1"

const workspace = "default"

// reader is the cores of some directories on a real log.
type reader struct {
	*cores.Cores
	t     *testing.T
	bus   *bus.Bus
	model *bus.Model
}

func newReader(t *testing.T, dirs ...string) *reader {
	t.Helper()
	specs, err := cores.Specs(dirs)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t}
	r.bus = bustest.New(t, func(b *bus.Bus) { r.model = bus.NewModel(b) })
	r.Cores = cores.New(r.model, workspace, home, specs, slog.New(slog.DiscardHandler))
	return r
}

func (r *reader) load() []cores.Loaded {
	r.t.Helper()
	loaded, err := r.Load(r.context(), "test")
	if err != nil {
		r.t.Fatal(err)
	}
	return loaded
}

func (r *reader) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

// servers are the ids of the declared servers.
func (r *reader) servers() (ids []string) {
	for _, s := range r.Servers() {
		ids = append(ids, s.ServerID)
	}
	return ids
}

func (r *reader) log() (out []events.Event) {
	r.t.Helper()
	for c, err := range r.bus.Read(r.context(), 0) {
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, c.Events...)
	}
	return out
}

// names are the names of the events in the log.
func (r *reader) names() (out []string) {
	r.t.Helper()
	for _, e := range r.log() {
		out = append(out, e.EventName())
	}
	return out
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	name = filepath.Join(dir, name)
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = os.WriteFile(name, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func declare(t *testing.T, dir, server, command string) {
	t.Helper()
	write(t, dir, "agent/mcp/"+server+".yaml", "command: "+command+"\n")
}

// git runs git as nobody in particular.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit makes a commit of everything and returns it.
func commit(t *testing.T, dir string) string {
	t.Helper()
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "change")
	return git(t, dir, "rev-parse", "HEAD")
}

func TestCoreInGitIsReadFromItsCommit_Decision5(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	declare(t, dir, "docs", "one")
	first := commit(t, dir)
	declare(t, dir, "docs", "two")
	declare(t, dir, "more", "two")
	r := newReader(t, dir)

	loaded := r.load()
	docs, _ := r.Server("docs")
	if loaded[0].Revision != first || docs.Command != "one" || docs.Revision != first || len(r.servers()) != 1 {
		t.Errorf("the work tree shows: revision %q, docs runs %q, servers %q", loaded[0].Revision, docs.Command, r.servers())
	}

	second := commit(t, dir)
	if loaded = r.load(); loaded[0].Revision != second || len(r.servers()) != 2 {
		t.Errorf("after a commit: %+v, servers %q", loaded, r.servers())
	}
	git(t, dir, "update-ref", "refs/gatebus/live", first)
	if loaded = r.load(); loaded[0].Revision != first || !slices.Equal(r.servers(), []string{"docs"}) {
		t.Errorf("refs/gatebus/live is preferred to HEAD: %+v, servers %q", loaded, r.servers())
	}
}

func TestCoreBelowTheRootOfItsRepositoryIsReadFromTheCommit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	declare(t, dir, "outside", "x")
	declare(t, filepath.Join(dir, "cores", "a b"), "inside", "x")
	write(t, filepath.Join(dir, "cores", "a b"), "agent/mcp/notes.txt", "none")
	if err := os.Symlink("inside.yaml", filepath.Join(dir, "cores", "a b", "agent", "mcp", "linked.yaml")); err != nil {
		t.Fatal(err)
	}
	commit(t, dir)
	r := newReader(t, filepath.Join(dir, "cores", "a b"))
	if loaded := r.load(); loaded[0].Failed || !slices.Equal(r.servers(), []string{"inside", "linked"}) {
		t.Errorf("%+v, servers %q", loaded, r.servers())
	}
}

func TestBareRepositoryAndLinkedWorkTreeAreCores(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	declare(t, dir, "docs", "x")
	head := commit(t, dir)
	bare, tree := filepath.Join(t.TempDir(), "bare.git"), filepath.Join(t.TempDir(), "tree")
	git(t, dir, "clone", "-q", "--bare", dir, bare)
	git(t, dir, "worktree", "add", "-q", tree)
	for _, dir := range []string{bare, tree} {
		r := newReader(t, dir)
		if loaded := r.load(); loaded[0].Failed || loaded[0].Revision != head || !slices.Equal(r.servers(), []string{"docs"}) {
			t.Errorf("%s: %+v, servers %q", filepath.Base(dir), loaded, r.servers())
		}
	}
}

func TestRepositoryWithoutCommitFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	declare(t, dir, "docs", "x")
	r := newReader(t, dir)
	loaded := r.load()
	if !loaded[0].Failed || len(r.servers()) != 0 || !slices.Equal(r.names(), []string{"core_load_failed"}) {
		t.Errorf("%+v, servers %q, log %q", loaded, r.servers(), r.names())
	}
}

func TestCoreOutsideGitHasTheConstantRevision_Decision5(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	declare(t, dir, "docs", "one")
	r := newReader(t, dir)
	r.load()
	before, _ := r.Server("docs")
	declare(t, dir, "docs", "two")
	r.load()
	after, _ := r.Server("docs")
	if before.Revision != cores.Worktree || after.Revision != cores.Worktree || before.Fingerprint == after.Fingerprint {
		t.Errorf("before %q %.8s, after %q %.8s", before.Revision, before.Fingerprint, after.Revision, after.Fingerprint)
	}
	loads := len(r.names())
	r.load()
	if n := len(r.names()); n != loads {
		t.Errorf("a load that finds nothing new is in the log: %q", r.names()[loads:])
	}
}

func TestInvalidFileKeepsThePreviousRevision_R13(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	declare(t, dir, "docs", "one")
	r := newReader(t, dir)
	r.load()
	declare(t, dir, "docs", "two")
	write(t, dir, "agent/mcp/bad.yaml", "comand: typo\n")
	write(t, dir, "agent/mcp/worse.yaml", "- x\n")
	loaded := r.load()
	docs, _ := r.Server("docs")
	if !loaded[0].Failed || docs.Command != "one" || r.model.Cores.Get(workspace, loaded[0].Core).Revision != cores.Worktree {
		t.Errorf("%+v, docs runs %q", loaded, docs.Command)
	}
	invalid := map[string]int{}
	for _, e := range r.log() {
		if e, ok := e.(events.DeclarationInvalid); ok {
			invalid[e.Path]++
		}
	}
	if invalid["agent/mcp/bad.yaml"] == 0 || invalid["agent/mcp/worse.yaml"] == 0 || len(invalid) != 2 {
		t.Errorf("every bad file is named, and no other: %v", invalid)
	}

	if err := os.Remove(filepath.Join(dir, "agent/mcp/bad.yaml")); err != nil {
		t.Fatal(err)
	}
	declare(t, dir, "worse", "x")
	if loaded = r.load(); loaded[0].Failed || !slices.Equal(r.servers(), []string{"docs", "worse"}) {
		t.Errorf("when all is right again: %+v, servers %q", loaded, r.servers())
	}
}

func TestServerOfTwoCoresKeepsTheFirst_R8(t *testing.T) {
	t.Parallel()
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	declare(t, a, "docs", "first")
	write(t, b, "agent/mcp/docs.yml", "command: second\n")
	r := newReader(t, a, b)
	loaded := r.load()
	docs, _ := r.Server("docs")
	if loaded[0].Failed || !loaded[1].Failed || docs.Command != "first" {
		t.Fatalf("%+v, docs runs %q", loaded, docs.Command)
	}
	want := "\"agent/mcp/docs.yml\": duplicate_server_id: the server is also declared by core a in agent/mcp/docs.yaml"
	if diff := cmp.Diff(want, loaded[1].Diagnostics[0].String()); diff != "" {
		t.Error(diff)
	}
}

func TestCoresOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	a, b := filepath.Join(t.TempDir(), "core"), filepath.Join(t.TempDir(), "core")
	declare(t, a, "docs", "x")
	declare(t, b, "more", "x")
	r := newReader(t, a, b)
	r.load()
	docs, _ := r.Server("docs")
	more, _ := r.Server("more")
	if docs.Core != "core" || !strings.HasPrefix(more.Core, "core-") {
		t.Errorf("cores %q and %q", docs.Core, more.Core)
	}
}

func TestOverridesArePartOfWhatIsRecorded_R69(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	declare(t, dir, "docs", "x")
	r := newReader(t, dir)
	r.load()
	loads := len(r.names())
	write(t, dir, "agent/core.yaml", "tools: {metadata: {docs: {drop: {risk: critical, approval_policy: prompt}}}}\n")
	r.load()
	docs, _ := r.Server("docs")
	if docs.Overrides["drop"].Risk != authority.Critical {
		t.Errorf("overrides %+v", docs.Overrides)
	}
	if len(r.names()) == loads {
		t.Error("another risk of a tool came into force without an event")
	}
}

func TestLiteralValuesAreInNoEvent_Decision6(t *testing.T) {
	t.Parallel()
	const canary = "sk-canary-4f1d9a77"
	dir := t.TempDir()
	write(t, dir, "agent/mcp/docs.yaml", "command: x\nargs: [--token, "+canary+"]\nenv: {API_TOKEN: "+canary+"}\n")
	write(t, dir, "agent/mcp/bad.yaml", "command: x\nenv: {9: "+canary+"}\n")
	r := newReader(t, dir)
	for range 2 {
		for _, d := range r.load()[0].Diagnostics {
			if strings.Contains(d.String(), canary) {
				t.Error("a diagnostic holds the value")
			}
		}
		for c, err := range r.bus.Read(r.context(), 0) {
			data, encodeErr := c.Encode()
			if err != nil || encodeErr != nil || strings.Contains(string(data), canary) {
				t.Errorf("commit %d holds the value (%v, %v)", c.Seq, err, encodeErr)
			}
		}
		if err := os.Remove(filepath.Join(dir, "agent/mcp/bad.yaml")); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// watched starts the watcher of the reader and ends it with the test.
func (r *reader) watched() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Watch(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

func (r *reader) awaitCore(id string, ok func(core.State) bool) {
	r.t.Helper()
	if s, err := r.model.Cores.Wait(r.context(), workspace, id, ok); err != nil {
		r.t.Fatalf("core %s: %v; it is %+v", id, err, s)
	}
}

func TestChangedFileIsLoadedByItself(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "core")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r := newReader(t, dir)
	r.load()
	digest := r.model.Cores.Get(workspace, "core").Digest
	r.watched()
	// Each of these directories is new to the watcher.
	declare(t, dir, "docs", "one")
	r.awaitCore("core", func(s core.State) bool { return s.Digest != digest })
	digest = r.model.Cores.Get(workspace, "core").Digest
	declare(t, dir, "docs", "two")
	r.awaitCore("core", func(s core.State) bool { return s.Digest != digest })
	write(t, dir, "agent/mcp/docs.yaml", "- bad\n")
	r.awaitCore("core", func(s core.State) bool { return s.Failed != "" })
}

func TestPromotedRevisionIsLoadedByItself(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "core")
	declare(t, dir, "docs", "one")
	git(t, dir, "init", "-q")
	first := commit(t, dir)
	r := newReader(t, dir)
	r.load()
	r.watched()
	declare(t, dir, "docs", "two")
	second := commit(t, dir)
	r.awaitCore("core", func(s core.State) bool { return s.Revision == second })
	// The directory of the ref does not exist before the first promotion.
	git(t, dir, "update-ref", "refs/gatebus/live", first)
	r.awaitCore("core", func(s core.State) bool { return s.Revision == first })
	git(t, dir, "update-ref", "refs/gatebus/live", second)
	r.awaitCore("core", func(s core.State) bool { return s.Revision == second })
}

// A worker that was started without the cores of its runtime would say of every tool
// that there is none.
func TestWhoFollowsWithoutAnyCoreIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	declare(t, dir, "docs", "docs")
	r := newReader(t, dir)
	follow := func(workspace string, specs []cores.Spec) error {
		return cores.Follow(r.model, workspace, home, specs, slog.New(slog.DiscardHandler)).Current(r.context())
	}
	if err := follow(workspace, nil); err != nil {
		t.Errorf("of a home that has loaded nothing: %v", err)
	}
	r.load()
	if err := follow(workspace, nil); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), r.Specs()[0].ID) {
		t.Errorf("without a core: %v", err)
	}
	if err := follow(workspace, r.Specs()); err != nil {
		t.Errorf("with the same cores: %v", err)
	}
	if err := follow("other", nil); err != nil {
		t.Errorf("in another workspace: %v", err)
	}
}
