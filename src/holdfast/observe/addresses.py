"""Which network addresses may be requested for a URL from a configuration file.

Writing that file must not give access to what only this host can reach: its own services, its network, and the
metadata service through which a cloud hands out the host's credentials.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_Address = IPv4Address | IPv6Address

# A public address that belongs to the host's own cloud.
_METADATA = {IPv4Address("168.63.129.16")}
# All public unicast addresses of IPv6.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


def resolved(host: str, port: int) -> list[str]:
    """Return the addresses of a host, in the order in which to try them. Blocks.

    Raises `OSError` when they cannot be resolved, `ValueError` for an invalid host name.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


def allowed(address: str, *, private: bool) -> bool:
    """Return whether this address may be requested; `private` allows those of this host and of private networks.

    Link-local, multicast and metadata addresses are never allowed, also not when embedded in an IPv6 address.
    """
    plain = _unwrapped(ip_address(address.partition("%")[0]))
    if plain.is_link_local or plain.is_multicast or plain.is_unspecified or plain in _METADATA:
        return False
    return private or (plain.is_global and (isinstance(plain, IPv4Address) or plain in _GLOBAL_UNICAST))


def _unwrapped(address: _Address) -> _Address:
    """Return the IPv4 address embedded in an IPv6 address, if there is one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or (address.teredo or [address])[-1]
