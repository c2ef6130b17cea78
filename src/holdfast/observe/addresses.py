"""Which network addresses a request to an address from a configuration file may go to.

Whoever may write that file must not thereby reach what only this host can: its own services, its network, and the
metadata service from which a cloud gives away the host's credentials.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_Address = IPv4Address | IPv6Address

# Public by its number, but answered by the host's own cloud.
_METADATA = {IPv4Address("168.63.129.16")}
# All that was ever given out; the rest of IPv6 has no public meaning.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


def resolved(host: str, port: int) -> list[str]:
    """The addresses of a host, in the order in which to try them. Blocks.

    Raises `OSError` when they cannot be found, `ValueError` for what is no host's name.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def allowed(address: str, *, private: bool) -> bool:
    """Whether a request may go to this address; `private` allows those of this host and of private networks.

    Link-local, multicast and metadata addresses never are, nor what such an address is hidden in.
    """
    plain = _unwrapped(ip_address(address.partition("%")[0]))
    if plain.is_link_local or plain.is_multicast or plain.is_unspecified or plain in _METADATA:
        return False
    return private or (plain.is_global and (isinstance(plain, IPv4Address) or plain in _GLOBAL_UNICAST))


def _unwrapped(address: _Address) -> _Address:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or (address.teredo or [address])[-1]
