package bus

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/nats-io/jwt/v2"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// ServerConfig is what every nats-server of an external bus has in its
// configuration, as text that it can include: who signs, the system account, and
// the runtime's account of the home, whose keys are made when they are not there.
// It holds no secret. Name, addresses, store and routes of a server are its own;
// accounts are kept in the folder "jwt" of its working directory. One answer is
// for all servers of a bus. Errors: home_not_writable, permission_too_open.
func ServerConfig(home string) (string, error) {
	const op = "configure servers"
	home, err := filepath.Abs(home)
	if err != nil {
		return "", fault.Wrap(op, fault.HomeNotWritable, redact.Static("there is no home"), err)
	}
	if err := makeHome(home); err != nil {
		return "", err
	}
	keys := keyring{filepath.Join(home, "keys")}
	a, err := newAccounts(keys)
	if err != nil {
		return "", asFault(op, fault.HomeNotWritable, redact.Static("the keys of the home cannot be read"), err)
	}
	preload := make([]string, 0, 2)
	revoked, err := keys.revoked()
	if err != nil {
		return "", asFault(op, fault.HomeNotWritable, redact.Static("the keys of the home cannot be read"), err)
	}
	for _, claims := range []*jwt.AccountClaims{a.systemClaims(), a.runtimeClaims(revoked)} {
		token, err := a.sign(claims)
		if err != nil {
			return "", asFault(op, fault.Internal, redact.Static("an account cannot be signed"), err)
		}
		preload = append(preload, "  "+claims.Subject+": "+token)
	}
	return fmt.Sprintf(`# Of every nats-server of this bus: include it in the configuration of each,
# beside server_name, listen, jetstream and cluster, which differ.
operator: %s
system_account: %s
resolver {
  type: full
  dir: "jwt"
  allow_delete: false
  interval: "2s"
  timeout: "500ms"
}
resolver_preload {
%s
}
max_payload: %d
ping_interval: "5s"
ping_max: 2
`, a.operatorToken, a.sys, strings.Join(preload, "\n"), maxPayload), nil
}
