package urlpolicy

import (
	"net/netip"
	"strings"
)

// TableDate is the day of the IANA IPv4 and IPv6 Special-Purpose Address Registries
// that the blocks are of.
const TableDate = "2026-07-18"

// block is a range of addresses with one reason; Allowed is public.
type block struct {
	prefix netip.Prefix
	reason Reason
}

// embedding is NAT64's prefix (RFC 6052): what is behind it is in the last 32 bits.
var embedding = netip.MustParsePrefix("64:ff9b::/96")

// blocks are looked up by the longest prefix. Of IPv4 all is public but what is
// named; of IPv6 only 2000::/3 is, but for what is named. The registry calls some
// blocks reachable that are refused here, since none of them is where a server is:
// anycast of the local gateway, AS112, AMT, identifiers.
var blocks = table(
	// Metadata and instance services of clouds, whatever they are within.
	MetadataAddress, `169.254.169.254 169.254.169.253 169.254.169.123 169.254.169.250 169.254.170.2 169.254.170.23
		169.254.42.42 169.254.0.23 169.254.20.10 168.63.129.16 100.100.100.200 192.0.0.192
		fe80::a9fe:a9fe fd00:ec2::/32 fd20:ce::254 fd00:c1::a9fe:a9fe fd00:42::42 fd00:a9fe:a9fe::1`,
	LinkLocalAddress, `169.254.0.0/16 fe80::/10`,
	PrivateAddress, `10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.168.0.0/16 ::1 fc00::/7`,
	Allowed, `0.0.0.0/0 2000::/3`,
	NonRoutableAddress, `0.0.0.0/8 192.0.0.0/24 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.175.48.0/24
		198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
		::/0 2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3ffe::/16 3fff::/20`,
)

// table reads pairs of a reason and its blocks.
func table(pairs ...any) (out []block) {
	for i := 0; i < len(pairs); i += 2 {
		for _, text := range strings.Fields(pairs[i+1].(string)) {
			prefix, err := netip.ParsePrefix(text)
			if err != nil { // one address
				a := netip.MustParseAddr(text)
				prefix = netip.PrefixFrom(a, a.BitLen())
			}
			out = append(out, block{prefix, pairs[i].(Reason)})
		}
	}
	return out
}

// addressReason judges an address that has no zone. embedded says that it is behind
// NAT64, and that the reason is that of the address there.
func addressReason(a netip.Addr) (reason Reason, embedded bool) {
	a = a.Unmap()
	if embedding.Contains(a) {
		b := a.As16()
		a, embedded = netip.AddrFrom4([4]byte(b[12:])), true
	}
	longest := -1
	for _, b := range blocks {
		if b.prefix.Bits() > longest && b.prefix.Contains(a) {
			longest, reason = b.prefix.Bits(), b.reason
		}
	}
	return reason, embedded
}
