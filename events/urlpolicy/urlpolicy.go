// Package urlpolicy decides which URLs may be contacted, and at which addresses
// (R94 to R109, decision 24).
//
// A URL is judged in this order, and the first no counts: [Parse] (size, UTF-8,
// scheme, authority, normal form of the host), [Policy.Target] (rules on the name,
// or on the address that the URL says), [Policy.Addresses] (all answers of the
// resolver), and for a redirect [Redirect.Rule]. Who looks up, records and dials is
// somebody else; only the addresses of the last step may be dialled.
//
// Parsing is stricter than that of browsers and of package net/url: where parsers
// are known to disagree on the host, the URL is refused. A host that some resolver
// would take for an address is that address here, and is looked up nowhere.
//
// Nothing here has state; all functions may be called at once.
package urlpolicy

import (
	"net/netip"
	"slices"
	"strings"
)

// Reason is why a URL may be contacted or may not. It is part of events.
type Reason string

// The reasons. The caller of a resolver gives those of DNS that need one, the
// dialer AddressNotValidated.
const (
	Allowed Reason = "allowed"

	InvalidURL          Reason = "invalid_url"
	UnsupportedScheme   Reason = "unsupported_scheme"
	MissingHostname     Reason = "missing_hostname"
	MetadataHostname    Reason = "metadata_hostname"
	PrivateHostname     Reason = "private_hostname"
	SingleLabelHostname Reason = "single_label_hostname"

	MetadataAddress    Reason = "metadata_address"
	LinkLocalAddress   Reason = "link_local_address"
	PrivateAddress     Reason = "private_address"
	NonRoutableAddress Reason = "non_routable_address"

	DNSFailure          Reason = "dns_failure"
	DNSTimeout          Reason = "dns_timeout"
	DNSNoAddresses      Reason = "dns_no_addresses"
	DNSInvalidAddress   Reason = "dns_invalid_address"
	DNSTooManyAddresses Reason = "dns_too_many_addresses"

	RedirectLimit           Reason = "redirect_limit"
	RedirectLoop            Reason = "redirect_loop"
	RedirectMissingLocation Reason = "redirect_missing_location"
	RedirectDowngrade       Reason = "redirect_downgrade"
	UserinfoNotAllowed      Reason = "userinfo_not_allowed"
	RedirectBodyCrossOrigin Reason = "redirect_body_cross_origin"
	RedirectMethodRewrite   Reason = "redirect_method_rewrite"

	AddressNotValidated Reason = "address_not_validated"
)

// Unresolved says that there was no answer to judge, so that another one may come later:
// that is no word of the policy.
func (r Reason) Unresolved() bool {
	return r == DNSFailure || r == DNSTimeout || r == DNSNoAddresses
}

// What a URL was decided on for: the phase of a url_decision.
const (
	PhaseConnect     = "connect"     // whether a person is asked to connect the server
	PhaseRequest     = "request"     // one request to it
	PhaseElicitation = "elicitation" // a page that a server asks a person to open
)

// MaxAddresses is how many answers of a resolver are looked at; a name with more is
// refused rather than checked in part.
const MaxAddresses = 32

// Policy is which private places may be contacted besides public ones. The zero
// value is the default policy: none.
type Policy struct {
	// Trusted is what the operator trusts (R108). Metadata services, link-local,
	// multicast, reserved and unspecified addresses stay refused whatever it says
	// (R109).
	Trusted []Trusted
}

// Trusted is a range of addresses, or a host, that the operator trusts.
type Trusted struct {
	Prefix netip.Prefix // valid for a range
	Host   string       // else a name in normal form, whatever private address it has
	Port   uint16       // 0 is any
}

// Private is the policy that trusts every private address.
func Private() Policy {
	var p Policy
	for _, b := range blocks {
		if b.reason == PrivateAddress {
			p.Trusted = append(p.Trusted, Trusted{Prefix: b.prefix})
		}
	}
	return p
}

// ID names the kind of policy in events: default or private.
func (p Policy) ID() string {
	if len(p.Trusted) == 0 {
		return "default"
	}
	return "private"
}

// Target judges what can be judged without a resolver: a URL that says an address
// is judged for good, one that says a name may be looked up if Allowed. Names of
// private places may be looked up where a range is trusted, since only the answer
// tells whether they are in it.
func (p Policy) Target(t Target) Reason {
	if t.Addr.IsValid() {
		return p.address(t, t.Addr)
	}
	reason := nameReason(t.Host)
	if reason == Allowed || reason == MetadataHostname {
		return reason
	}
	for _, trusted := range p.Trusted {
		if trusted.on(t.Port) && (trusted.Prefix.IsValid() || trusted.Host == t.Host) {
			return Allowed
		}
	}
	return reason
}

// Addresses judges all answers of a resolver for a target that [Policy.Target]
// allowed, and returns what was judged: mapped IPv4 addresses unwrapped, duplicates
// removed, IPv6 first. Only if the Reason is Allowed may they be dialled, in this
// order. One bad answer refuses the name, with its reason (R103). For a target that
// is an address the answers are that address.
func (p Policy) Addresses(t Target, answers []netip.Addr) ([]netip.Addr, Reason) {
	if t.Addr.IsValid() {
		answers = []netip.Addr{t.Addr}
	}
	switch {
	case len(answers) == 0:
		return nil, DNSNoAddresses
	case len(answers) > MaxAddresses:
		return nil, DNSTooManyAddresses
	}
	judged, reason := make([]netip.Addr, 0, len(answers)), Allowed
	for _, a := range answers {
		if !a.IsValid() || a.Zone() != "" {
			return nil, DNSInvalidAddress
		}
		a = a.Unmap()
		if slices.Contains(judged, a) {
			continue
		}
		judged = append(judged, a)
		if reason == Allowed {
			reason = p.address(t, a)
		}
	}
	slices.SortStableFunc(judged, func(a, b netip.Addr) int { return b.BitLen() - a.BitLen() })
	return judged, reason
}

// address judges one address of a target.
func (p Policy) address(t Target, a netip.Addr) Reason {
	reason, embedded := addressReason(a)
	if reason != PrivateAddress || embedded { // RFC 6052 3.1: no private address behind NAT64
		return reason
	}
	for _, trusted := range p.Trusted {
		if trusted.on(t.Port) && (trusted.Prefix.IsValid() && trusted.Prefix.Contains(a) || trusted.Host != "" && trusted.Host == t.Host) {
			return Allowed
		}
	}
	return reason
}

func (t Trusted) on(port uint16) bool { return t.Port == 0 || t.Port == port }

// metadataNames are names of metadata services, refused in every policy (R106).
var metadataNames = map[string]bool{
	"metadata": true, "metadata.internal": true, "metadata.google.internal": true, "metadata.goog": true,
	"instance-data": true, "instance-data.ec2.internal": true,
	"metadata.azure.internal": true, "metadata.azure.com": true,
	"metadata.oraclecloud.com": true, "metadata.tencentyun.com": true, "api.metadata.cloud.ibm.com": true,
	"metadata.platformequinix.com": true, "metadata.packet.net": true, "rancher-metadata": true,
}

// privateNames are names of this host by hosts files. privateSuffixes hold names
// below them too: special-use ones (RFC 6761, 6762, 7686, 8375, 9476), those reserved
// or commonly used for private networks, and those of clusters.
var (
	privateNames    = map[string]bool{"localhost4": true, "localhost6": true, "ip6-localhost": true, "ip6-loopback": true}
	privateSuffixes = map[string]bool{
		"localhost": true, "localdomain": true, "localdomain4": true, "localdomain6": true,
		"local": true, "internal": true, "home.arpa": true, "onion": true, "alt": true, "test": true, "invalid": true,
		"lan": true, "corp": true, "home": true, "intranet": true, "private": true, "svc": true,
	}
)

// nameReason judges a name without asking for its addresses.
func nameReason(host string) Reason {
	last := strings.LastIndexByte(host, '.')
	switch {
	case metadataNames[host]:
		return MetadataHostname
	case privateNames[host], privateSuffixes[host[last+1:]]:
		return PrivateHostname
	case last < 0:
		return SingleLabelHostname
	}
	if before := strings.LastIndexByte(host[:last], '.'); privateSuffixes[host[before+1:]] { // of two labels
		return PrivateHostname
	}
	return Allowed
}
