package installer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/events/server"
)

// item is what the keystore has of a secret: a version of a reference.
type item struct{ ref, version string }

func (it item) String() string { return server.Item(it.ref, it.version) }

// parseItem reads the name of an item; ok is false for what is not of ours, which is
// never touched (R91).
func parseItem(name string) (it item, ok bool) {
	at := strings.LastIndexByte(name, '@')
	if at < 0 {
		return item{}, false
	}
	it = item{name[:at], name[at+1:]}
	_, err := ulid.ParseStrict(it.version)
	_, _, known := owner(it.ref)
	return it, err == nil && known
}

// owner is the workspace of a reference, empty for that of a user, and the key of the
// server that it belongs to.
func owner(ref string) (workspace, key string, ok bool) {
	p := strings.SplitN(ref, ":", 7)
	if len(p) != 7 || p[0] != "gateway_settings" || p[1] != "mcp" || p[4] == "" || p[6] == "" {
		return "", "", false
	}
	switch p[2] {
	case server.ScopeWorkspace:
		return p[3], p[4], bus.ValidName(p[3])
	case server.ScopeUser:
		return "", server.Key(p[2], p[3], p[4]), p[3] == server.UserKey
	}
	return "", "", false
}

// short is a reference of the workspace: SERVER/env/KEY.
func short(workspace, name string) (ref string, ok bool) {
	p := strings.SplitN(name, "/", 3)
	if len(p) != 3 || strings.Contains(p[0], ":") {
		return "", false
	}
	if p[1] == "header" {
		p[2] = strings.ToLower(p[2])
	}
	return strings.Join([]string{"gateway_settings", "mcp", server.ScopeWorkspace, workspace, p[0], p[1], p[2]}, ":"), true
}

// minted is when a version was made.
func (it item) minted() time.Time {
	id, err := ulid.ParseStrict(it.version)
	if err != nil {
		return time.Time{}
	}
	return ulid.Time(id.Time())
}

// census is what there is and what of it is in use.
type census struct {
	stored, orphans []item
	active          map[item]bool
	// alone says that no commit of another process can be on its way.
	alone bool
}

// census takes one, under the lock. What is stored is listed first: what is put while
// the rest is read is in no list (R91). ended are servers that were uninstalled, whose
// secrets may be deleted although they are not known to have stopped. The error is of
// kind gc_refs_undecodable where not all that is in use can be read; then nothing is
// to be deleted (R93).
func (i *Installer) census(ctx context.Context, ended map[string]bool) (c census, err error) {
	names, err := i.Store.Items(ctx)
	if err != nil {
		return c, err
	}
	if c.alone, err = i.Bus.Settled(ctx); err != nil {
		return c, err
	}
	c.active = map[item]bool{}
	for at, s := range i.Model.Servers.All() {
		if s.Installation.Home != i.Home || !s.Installed && (stopped(s) || ended[at.Workspace+" "+at.Key]) {
			continue
		}
		for ref, version := range s.Installation.Secrets() {
			it, ok := parseItem(item{ref, version}.String())
			if !ok {
				return c, fault.New("secret.collect", fault.GCRefsUndecodable, redact.Name("a reference of the installed server "+at.Key+" cannot be read"))
			}
			c.active[it] = true
		}
	}
	for _, name := range names {
		it, ok := parseItem(name)
		if !ok {
			continue
		}
		c.stored = append(c.stored, it)
		if !c.active[it] {
			c.orphans = append(c.orphans, it)
		}
	}
	slices.SortFunc(c.orphans, func(a, b item) int { return strings.Compare(a.String(), b.String()) })
	return c, nil
}

// stopped reports whether nothing of a server runs that was uninstalled.
func stopped(s server.State) bool {
	return s.Status == "" || s.Status == server.Stopped || s.Status == server.Disabled
}

// swept is what a sweep came to.
type swept struct {
	active, stored, orphans, deleted int
	failed                           []string
}

// sweep deletes what nothing refers to, or only counts it; spared are orphans that are
// left all the same. Errors are those of census and the context's; what could not be
// deleted is in the result, and in the log.
func (i *Installer) sweep(ctx context.Context, dry bool, ended map[string]bool, spared func(item) bool) (out swept, err error) {
	var young []item // that a commit on its way may refer to
	for first := true; ; first = false {
		release, err := i.lock.take(ctx, true)
		if err != nil {
			return out, err
		}
		c, err := i.census(ctx, ended)
		if first && err == nil {
			out.active, out.stored, out.orphans = len(c.active), len(c.stored), len(c.orphans)
		}
		// What comes after the first census is not this sweep's business.
		wait := time.Duration(0)
		orphans := slices.DeleteFunc(c.orphans, func(it item) bool { return dry || !first && !slices.Contains(young, it) || spared(it) })
		young = nil
		for _, it := range orphans {
			if age := time.Since(it.minted()); !c.alone && age < landing && !i.overtaken(it) {
				young, wait = append(young, it), max(wait, min(landing-age, landing))
				continue
			}
			if err == nil {
				err = i.drop(ctx, it, &out)
			}
		}
		release()
		if err != nil || len(young) == 0 {
			return out, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

// overtaken reports whether no commit can refer to an item any more because a later one
// of its server is in the log: a version is made after what its commit expects to be the
// last, so that it is in the log before the other one, and known, or never.
func (i *Installer) overtaken(it item) bool {
	last := i.Model.Servers.Get(i.place(it.ref)).Last
	return last.Truncate(time.Millisecond).After(it.minted())
}

// place is where the log has the server of a reference.
func (i *Installer) place(ref string) (workspace, key string) {
	workspace, key, _ = owner(ref)
	return cmp.Or(workspace, i.Workspace), key
}

// drop deletes an item and says so. The error is the context's, or that of the log.
func (i *Installer) drop(ctx context.Context, it item, out *swept) error {
	cmd := server.DropSecret{Ref: it.ref, Version: it.version}
	if err := i.Store.Delete(ctx, it.String()); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		i.Log.Warn("a secret that nothing refers to could not be deleted", "ref", it.ref, "error", err.Error())
		cmd.Failed = string(fault.KindOf(err))
		out.failed = append(out.failed, it.ref)
	} else {
		out.deleted++
	}
	return i.say(ctx, it.ref, cmd)
}

// say records what became of a secret: with the server that had it, or with the home
// where the log has no such server.
func (i *Installer) say(ctx context.Context, ref string, cmd server.Command) error {
	workspace, key := i.place(ref)
	m := i.meta("")
	if s := i.Model.Servers.Get(workspace, key); s.Installation.Name != "" {
		m.Scope.Server = s.Installation.Name
	} else {
		workspace, key = i.Workspace, server.HomeKey(i.Home)
	}
	_, err := i.Model.Servers.Dispatch(ctx, workspace, key, m, cmd)
	return err
}

// tidy is the job: it sweeps once the servers that were uninstalled have stopped, and
// not much later. It bears that it comes twice. A secret that is older than the job, of a
// server that this log has never had, is none of it: the home may have been on another
// bus, or have lost its log, and there is no other copy. Only a person who asks for the
// garbage collection deletes that.
func (i *Installer) tidy(ctx context.Context, _, job string) error {
	began, err := ulid.ParseStrict(job)
	if err != nil {
		return fmt.Errorf("installer: the id of a job: %w", err)
	}
	spared := func(it item) bool {
		known := i.Model.Servers.Get(i.place(it.ref)).Installation.Name != ""
		return !known && it.minted().Before(ulid.Time(began.Time()))
	}
	ended := map[string]bool{}
	limit, cancel := context.WithTimeout(ctx, stopping)
	defer cancel()
	for at, s := range i.Model.Servers.All() {
		if s.Installation.Home != i.Home || s.Installed || stopped(s) {
			continue
		}
		_, err := i.Model.Servers.Wait(limit, at.Workspace, at.Key, func(s server.State) bool { return s.Installed || stopped(s) })
		switch {
		case err == nil:
		case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
			return err
		default:
			ended[at.Workspace+" "+at.Key] = true
		}
	}
	_, err = i.sweep(ctx, false, ended, spared)
	if fault.Is(err, fault.GCRefsUndecodable) {
		i.Log.Error("no secret is deleted", "error", err.Error()) // it would fail in the same way again
		return nil
	}
	return err
}

// Items are those of the keystore that installations of the home refer to.
func (i *Installer) Items() (items []string) {
	for _, s := range i.Model.Servers.All() {
		if s.Installation.Home != i.Home {
			continue
		}
		for ref, version := range s.Secrets() {
			items = append(items, item{ref, version}.String())
		}
	}
	return items
}
