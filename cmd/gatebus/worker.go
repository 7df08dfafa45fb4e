package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events/fault"
)

func (m *Main) workerCommand() *cobra.Command {
	var dirs []string
	cmd := &cobra.Command{
		Use: "worker", Short: "Run one more runtime of a home, on the bus that another one runs or uses", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return m.worker(cmd.Context(), dirs) },
	}
	cmd.Flags().StringArrayVar(&dirs, "core", nil, "directory of an agent core, the same as the runtime's; may be repeated")
	return cmd
}

// worker runs a second runtime of a home until it is interrupted: it opens
// connections and makes calls, with the keys that the processes of the home share
// (<home>/keys) and the declarations that the home has loaded.
func (m *Main) worker(ctx context.Context, dirs []string) (err error) {
	config, err := m.loadConfig()
	if err != nil {
		return err
	}
	external, err := m.externalBus(config)
	switch {
	case err != nil:
		return err
	case external == nil:
		return usage("--bus is missing: a worker runs on the bus of another runtime")
	case external.Creds == nil:
		return usage("--creds is missing: have an operator make them with gatebus bus creds NAME --role worker")
	}
	s, err := m.settings(config, upFlags{cores: dirs})
	if err != nil {
		return err
	}
	s.worker, s.external = true, external
	return m.serve(ctx, s, func(r *instance) error {
		if m.output == "table" {
			_, err := fmt.Fprintf(m.Stdout, "ready: runtime %s  nats %s  home %s\n", r.id, r.bus.URL(), m.home)
			return err
		}
		line, err := json.Marshal(struct {
			Ready   bool   `json:"ready"`
			Runtime string `json:"runtime"`
		}{true, r.id})
		if err == nil {
			_, err = fmt.Fprintf(m.Stdout, "%s\n", line)
		}
		return err
	})
}

// externalBus is the bus that flags or configuration name in place of an embedded
// one; nil when they name none.
func (m *Main) externalBus(c Config) (*bus.External, error) {
	e := &bus.External{URL: m.bus}
	if e.URL == "" {
		e.URL = string(c.Bus)
	}
	if e.URL == "" {
		return nil, nil
	}
	if m.creds != "" {
		var err error
		if e.Creds, err = os.ReadFile(m.creds); err != nil {
			return nil, &problem{kind: fault.Usage, text: "--creds: " + err.Error(), hint: "name a file that can be read"}
		}
	}
	return e, nil
}

// serve runs a runtime until it is interrupted, or ends by itself. ready is
// called when it can serve.
func (m *Main) serve(ctx context.Context, s settings, ready func(*instance) error) (err error) {
	limitMemory(m.Getenv)
	if m.Adopt != nil {
		end, err := m.Adopt()
		if err != nil {
			s.log.Warn("what servers leave behind when they end is not ended", "error", err)
		}
		defer end()
	}
	r, err := start(ctx, s)
	if f, ok := errors.AsType[*fault.Fault](err); ok && f.Kind == fault.AuthenticationRequired {
		return &problem{kind: f.Kind, text: "--creds: " + f.Text.String(), hint: "have an operator make them with gatebus bus creds NAME --role worker"}
	}
	if err != nil {
		return err
	}
	defer func() {
		switch e := r.close(context.WithoutCancel(ctx), "stopped"); {
		case e == nil || err != nil:
		case ctx.Err() != nil:
			s.log.Warn("what could not be closed in order is closed by the next start", "error", e)
		default:
			err = e
		}
	}()
	if err := ready(r); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil // an orderly stop is a success
	case err := <-r.failed:
		return err
	}
}
