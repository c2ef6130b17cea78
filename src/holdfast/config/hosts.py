"""Whether a host is this one: what is sent to another host must be encrypted unless the settings say otherwise."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def is_local(host: str) -> bool:
    """Return whether the host is localhost, a loopback address or a Unix socket (also no host at all).

    Resolves no names.
    """
    if not host or host.startswith(("/", "@")) or host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ip_address(host[1:-1] if host[0] + host[-1] == "[]" else host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
