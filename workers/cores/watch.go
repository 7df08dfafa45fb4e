package cores

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/gatebus/gatebus/events/fault"
)

// settle is how long a directory must be quiet before it is read again: an
// editor writes a file in several steps.
const settle = 250 * time.Millisecond

// Watch loads the cores again when their files change, until ctx ends. A
// watcher that the system refuses is logged and replaced by core/reload. Where
// another process records what is loaded, it is the log that is watched; what it
// says is live and cannot be had here for as long as copying a core may take is
// an error of kind conflict.
func (c *Cores) Watch(ctx context.Context) error {
	if c.follows {
		return c.keepUp(ctx)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		c.log.Warn("cores are not watched; use core/reload", "error", err)
		<-ctx.Done()
		return nil
	}
	defer w.Close()
	c.watchAll(ctx, w)
	// What changed between the first load and now would not be seen otherwise.
	timer := time.After(settle)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			timer = time.After(settle)
		case err := <-w.Errors:
			c.log.Warn("watching a core", "error", err)
		case <-timer:
			timer = nil
			c.watchAll(ctx, w) // what did not exist before may exist now
			loads, err := c.Load(ctx, "watch")
			if err != nil && ctx.Err() == nil {
				c.log.Error("reload of the cores", "error", err)
			}
			for _, l := range loads {
				if l.Failed {
					c.log.Warn("core not activated", "core", l.Core, "problems", len(l.Diagnostics))
					for _, g := range l.Diagnostics {
						c.log.Warn("problem of a declaration", "core", l.Core, "problem", g.String())
					}
				}
			}
		}
	}
}

// copying is how long a core may be another one here than the log says is live.
const copying = 10 * time.Second

// keepUp activates what the log says is live.
func (c *Cores) keepUp(ctx context.Context) error {
	tick := time.NewTicker(settle)
	defer tick.Stop()
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			err := c.Current(ctx)
			switch {
			case err == nil:
				since = now
			case fault.Is(err, fault.Conflict) && now.Sub(since) > copying:
				return err
			}
		}
	}
}

// watchAll watches the directories whose content decides a core; those that do
// not exist are skipped, and adding one twice does nothing.
func (c *Cores) watchAll(ctx context.Context, w *fsnotify.Watcher) {
	for _, s := range c.specs {
		c.mu.RLock()
		root := c.roots[s.ID]
		c.mu.RUnlock()
		dirs := []string{s.Dir, filepath.Join(s.Dir, "agent"), filepath.Join(s.Dir, filepath.FromSlash(root))}
		if inGit(s.Dir) {
			dirs = refs(ctx, s.Dir)
		}
		for _, d := range dirs {
			if err := w.Add(d); err != nil && !os.IsNotExist(err) {
				c.log.Warn("a core directory is not watched", "core", s.ID, "error", err)
			}
		}
	}
}
