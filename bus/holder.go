package bus

import (
	"github.com/gatebus/gatebus/events/authority"
	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/events/host"
)

// Installer is the authority of who installed a server: as long as he is an operator he
// may connect to that, without a grant (C1, C12).
func (m *Model) Installer(workspace, principal, server string) authority.Snapshot {
	s := authority.Snapshot{Principal: principal, Seq: m.Hosts.Seq(workspace, principal)}
	if h := m.Hosts.Get(workspace, principal); h.Role == host.RoleOperator && !h.Revoked {
		s.Capabilities = []authority.Granted{{Capability: authority.Connect(server)}}
	}
	return s
}

// Holder is the authority that a connection stands on: its principal's, who has installed
// the server where that is what it is.
func (m *Model) Holder(workspace string, s connection.State) authority.Snapshot {
	if s.Installed() {
		return m.Installer(workspace, s.Principal, s.Server)
	}
	return m.Authority(workspace, s.Principal)
}
