package secrets

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/host"
)

// The states of a secret in a list.
const (
	stored  = "stored"
	missing = "missing"
	orphan  = "orphan"
	unknown = "unknown"
)

// Methods are those that it answers: what is known of the secrets and of the
// keystore, never a value (R89). Identity says who makes a request, when he has one
// of the roles, used are the items that installations of this home refer to.
func (s *Store) Methods(identity func(r *bus.Request, roles ...string) (client.Identity, error), used func() []string) []bus.Method {
	answer := func(name string, do func(context.Context) (any, error)) bus.Method {
		return bus.Method{Name: name, Handle: func(ctx context.Context, r *bus.Request) (any, error) {
			if _, err := identity(r, host.RoleOperator); err != nil {
				return nil, err
			}
			if err := r.Decode(&struct{}{}); err != nil {
				return nil, err
			}
			return do(ctx)
		}}
	}
	return []bus.Method{
		answer("secret/list", func(ctx context.Context) (any, error) {
			items, err := s.Items(ctx)
			return rows(items, used(), err != nil), nil // why it is unknown is what doctor says
		}),
		answer("secret/doctor", func(ctx context.Context) (any, error) { return s.doctor(ctx, used()), nil }),
	}
}

// rows are the secrets that are stored or referred to, sorted.
func rows(items, used []string, closed bool) []client.Secret {
	states := map[string]string{}
	for _, item := range items {
		states[item] = orphan
	}
	for _, item := range used {
		switch _, ok := states[item]; {
		case closed:
			states[item] = unknown
		case ok:
			states[item] = stored
		default:
			states[item] = missing
		}
	}
	out := []client.Secret{}
	for _, item := range slices.Sorted(maps.Keys(states)) {
		row := row(item)
		row.State = states[item]
		out = append(out, row)
	}
	return out
}

// row takes the name of an item apart (R81):
// gateway_settings:mcp:SCOPE:KEY:SERVER:PLACE:NAME@VERSION. One that somebody else
// stored is all reference.
func row(item string) client.Secret {
	s := client.Secret{Ref: item}
	if at := strings.LastIndexByte(item, '@'); at >= 0 {
		s.Ref, s.Version = item[:at], item[at+1:]
	}
	if p := strings.SplitN(s.Ref, ":", 7); len(p) == 7 && p[0] == "gateway_settings" && p[1] == "mcp" {
		s.Scope, s.Server, s.Place, s.Key = p[2]+":"+p[3], p[4], p[5], p[6]
	}
	return s
}

// doctor looks at the whole keystore.
func (s *Store) doctor(ctx context.Context, used []string) client.SecretDoctor {
	selected := s.Selected(ctx)
	d := client.SecretDoctor{
		Provider: selected.Provider, Reason: selected.Reason.String(), Made: selected.Made, Available: selected.Err == nil,
		Warnings: []client.SecretWarning{},
	}
	for _, w := range selected.Warnings {
		d.Warnings = append(d.Warnings, client.SecretWarning{Kind: string(w.Kind), Message: w.Text.String()})
	}
	if selected.Err != nil {
		d.Kind, d.Problem = string(fault.KindOf(selected.Err)), problem(selected.Err)
		return d
	}
	items, err := s.Items(ctx)
	if err != nil { // it went away since
		d.Available, d.Kind, d.Problem = false, string(fault.KindOf(err)), problem(err)
		return d
	}
	for _, row := range rows(items, used, false) {
		switch row.State {
		case stored:
			d.Stored++
		case missing:
			d.Missing++
		case orphan:
			d.Stored++
			d.Orphans++
		}
	}
	return d
}

// problem is what an error says, without the operation.
func problem(err error) string {
	if f, ok := errors.AsType[*fault.Fault](err); ok {
		return f.Text.String()
	}
	return "the keystore cannot be read"
}
