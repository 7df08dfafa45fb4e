package fault_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// closedList is section 4.3 of the requirements, the rejection reasons of
// R186, and the kinds of the interface and the decisions.
const closedList = `
	invalid_yaml not_a_mapping unknown_field invalid_value missing_command missing_url
	invalid_url_scheme field_not_supported_for_transport ambiguous_transport missing_transport
	duplicate_server_id declaration_root_not_dir path_escapes_root invalid_server_id
	core_load_failed reserved_env_name invalid_json missing_mcp_servers invalid_server_config
	invalid_server_name invalid_command invalid_args invalid_cwd invalid_env invalid_headers
	invalid_url credential_bearing_url invalid_timeout invalid_enabled_state
	invalid_implicit_state invalid_required invalid_scope_kind

	connect_authority_unbound capability_denied approval_denied cwd_outside_workspace url_blocked

	missing_env_reference missing_secret spawn_failed connect_timeout initialize_failed
	list_tools_failed auth_required frame_too_large redirect_downgrade too_many_redirects
	catalog_too_large

	tool_name_collision session_evicted runtime_closed resolution_uncertain
	required_unavailable too_many_tools schema_bytes_exceeded limits_invalid
	projection_persist_failed

	security_blocked not_found disabled_by_policy unavailable provider_unsupported
	catalog_missing tool_missing invalid_input duplicate validation_rejected
	dependency_missing materialization_failed

	not_found tool_unbound binding_mismatch tool_drift installation_unavailable
	runtime_not_live turn_not_active invalid_arguments arguments_too_large resource_exhausted
	timed_out cancelled execution_failed result_invalid redaction_failed audit_unavailable
	indeterminate

	keystore_write_failed install_commit_failed gc_refs_undecodable permission_too_open
	private_path_unsafe unknown_argument

	review_token_missing review_token_stale gate_failed

	approval_pending approval_expired bus_unavailable conflict home_locked
	authentication_required invalid_request unknown_method tool_changed server_failed internal
	program_changed audit_damaged port_in_use home_not_writable config_invalid usage role_denied illegal_transition`

func TestTableHasEveryKindOfTheRequirements(t *testing.T) {
	t.Parallel()
	for _, k := range strings.Fields(closedList) {
		e, ok := fault.Lookup(fault.Kind(k))
		if !ok || e.Kind != fault.Kind(k) {
			t.Errorf("kind %s is not in the table", k)
		}
	}
}

func TestTableIsUniqueOrderedAndFilled(t *testing.T) {
	t.Parallel()
	kinds := map[fault.Kind]bool{}
	last := 1000
	name := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	for e := range fault.Table() {
		if kinds[e.Kind] || !name.MatchString(string(e.Kind)) {
			t.Errorf("%s: kind is there twice or has a wrong form", e.Kind)
		}
		kinds[e.Kind] = true
		if e.Number <= last {
			t.Errorf("%s: %s comes after GB%d", e.Kind, e.Code(), last)
		}
		last = e.Number
		if area := e.Number / 1000; area < 1 || area > 8 {
			t.Errorf("%s: %s is in no area", e.Kind, e.Code())
		}
		if e.Exit < 1 || e.Exit > 10 {
			t.Errorf("%s: exit code %d", e.Kind, e.Exit)
		}
		for _, s := range []string{e.Meaning, e.Hint} {
			if s == "" || strings.ContainsAny(s, "\n\t") || strings.HasSuffix(s, ".") {
				t.Errorf("%s: %q is not one line", e.Kind, s)
			}
		}
	}
}

// The numbers and exit codes that others rely on do not move.
func TestNumbersAreStable(t *testing.T) {
	t.Parallel()
	for _, want := range []struct {
		kind   fault.Kind
		number int
		exit   int
		rpc    int
	}{
		{fault.Usage, 1001, 2, -32011},
		{fault.InvalidRequest, 1005, 2, -32600},
		{fault.UnknownMethod, 1006, 2, -32601},
		{fault.InvalidInput, 1007, 2, -32602},
		{fault.CapabilityDenied, 2002, 3, -32012},
		{fault.ApprovalPending, 2004, 5, -32012},
		{fault.AuthRequired, 3007, 4, -32013},
		{fault.NotFound, 5001, 6, -32015},
		{fault.InvalidArguments, 5009, 2, -32602},
		{fault.ExecutionFailed, 5014, 9, -32015},
		{fault.ReviewTokenStale, 7002, 7, -32017},
		{fault.BusUnavailable, 8001, 8, -32018},
		{fault.AuditDamaged, 8004, 10, -32018},
	} {
		e, ok := fault.Lookup(want.kind)
		if !ok || e.Number != want.number || e.Exit != want.exit || e.RPC() != want.rpc {
			t.Errorf("%s is %s, exit %d, rpc %d; want GB%d, %d, %d", want.kind, e.Code(), e.Exit, e.RPC(), want.number, want.exit, want.rpc)
		}
	}
	if e, ok := fault.Lookup("no such kind"); ok || e.Kind != fault.Internal {
		t.Errorf("an unknown kind is %v, %v", e, ok)
	}
}

func TestCauseIsFoundAndNeverShown(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-hunter2"
	cause := fmt.Errorf("dial with %s: %w", secret, context.Canceled)
	f := fault.Wrap("connect", fault.SpawnFailed, redact.Static("the program did not start"), cause)
	wrapped := fmt.Errorf("worker: %w", f)
	if !errors.Is(wrapped, context.Canceled) {
		t.Error("the cause is not found")
	}
	if errors.Is(wrapped, context.DeadlineExceeded) {
		t.Error("a cause is found that is none")
	}
	if got, want := wrapped.Error(), "worker: connect: the program did not start"; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "err", wrapped, "fault", f)
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{log.String(), string(data)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		shown = append(shown, fmt.Sprintf(verb, f), fmt.Sprintf(verb, *f), fmt.Sprintf(verb, wrapped))
	}
	if i := slices.IndexFunc(shown, func(s string) bool {
		return strings.Contains(s, "hunter2") || strings.Contains(s, fmt.Sprintf("%x", secret))
	}); i >= 0 {
		t.Errorf("the cause is shown: %s", shown[i])
	}
	if f.Cause().Reveal() != cause {
		t.Error("the cause is lost")
	}
}

func TestKindOf(t *testing.T) {
	t.Parallel()
	f := fault.New("call.bind", fault.ToolUnbound, redact.Static("no such tool"))
	for _, c := range []struct {
		err  error
		want fault.Kind
	}{
		{nil, ""},
		{errors.New("x"), fault.Internal},
		{f, fault.ToolUnbound},
		{fmt.Errorf("x: %w", f), fault.ToolUnbound},
		{errors.Join(errors.New("x"), f), fault.ToolUnbound},
	} {
		if got := fault.KindOf(c.err); got != c.want {
			t.Errorf("KindOf(%v) = %q, want %q", c.err, got, c.want)
		}
	}
	if !fault.Is(fmt.Errorf("x: %w", f), fault.ToolUnbound) || fault.Is(f, fault.NotFound) || fault.Is(nil, "") || fault.Is(errors.New("x"), fault.Internal) {
		t.Error("Is does not agree with the kind")
	}
}
