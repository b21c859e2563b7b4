"""The network that an address belongs to, so that one peer with many addresses counts as one."""

from functools import lru_cache
from typing import Final

IPV6_PREFIX_BITS: Final = 64
"""A site gets at least this much of IPv6: an attacker has 2^64 addresses of one network."""
CACHED_MAX: Final = 1_024


@lru_cache(CACHED_MAX)
def network_of(address: str, ipv4_bits: int = 32) -> str:
    """Returns `10.1.2.0/24` for an IPv4 address with 24 bits, and the /64 of an IPv6 address.

    An IPv4 address that is mapped into IPv6 counts as IPv4. A text that is no address is returned
    unchanged.
    """
    import ipaddress  # here, because a start-up has no use for it

    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return str(ipaddress.ip_network((parsed, IPV6_PREFIX_BITS), strict=False))
        parsed = parsed.ipv4_mapped
    if ipv4_bits == parsed.max_prefixlen:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, ipv4_bits), strict=False))
