"""Where the dashboard can be reached from, and what that takes: tokens, TLS, a proxy.

On loopback a token is made for the process and is in the address that is printed, as Jupyter does: that works at once,
and other users of the host, who can reach every port of loopback, do not get in. An open page that is read-only would
show them keys, errors and records. Beyond loopback there must be a token file, and TLS or a proxy that has it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.config.hosts import is_local
from holdfast.errors import UsageError
from holdfast.web.access import Access
from holdfast.web.limits import Limits
from holdfast.web.tokens import ProcessToken, TokenFile, Tokens

_EVERYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104 - these are recognized, and listened on only with tokens
_BASE_PATH = re.compile(r"(/[\w.~-]+)+")


@dataclass(frozen=True)
class Entrance:
    """The options of `holdfast web`. Raises `UsageError` for options that would let in anybody, or nobody."""

    host: str
    token_file: Path | None = None
    read_only: bool = False
    base_path: str = ""
    allowed_hosts: Sequence[str] = ()
    allow_edit: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False
    token: str | None = field(default=None, repr=False)
    """The token of this process; made if there is neither this nor a file."""

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("--tls-cert and --tls-key belong together")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise UsageError(f"there is no file {path}")
        if self.base_path.rstrip("/") and not _BASE_PATH.fullmatch(self.base_path.rstrip("/")):
            raise UsageError(f"--base-path is a path such as /holdfast, not {self.base_path!r}")
        if self.read_only and self.allow_edit:
            raise UsageError("--read-only and --allow-edit exclude each other")
        if self.behind_proxy and self.token_file is None:
            raise UsageError("whoever reaches the proxy reaches the dashboard: add --token-file")
        if not self._is_loopback:
            self._check_remote()

    def _check_remote(self) -> None:
        where = f"{self.host or 'every address'} can be reached from other hosts"
        if self.token_file is None:
            raise UsageError(f"{where}: add --token-file, so that not everyone gets in")
        if self.tls_cert is None and not self.behind_proxy:
            raise UsageError(
                f"{where}: add --tls-cert and --tls-key, or --behind-proxy if a proxy with TLS is in front, "
                "so that tokens are not sent in clear text"
            )
        if self.host in _EVERYWHERE and not self.allowed_hosts:
            raise UsageError(f"{where}: add --allowed-host with the name that viewers type, such as dash.example.com")

    @property
    def _is_loopback(self) -> bool:
        return bool(self.host) and is_local(self.host)

    def access(self, port: int, report: Callable[[str], None]) -> tuple[Access, str]:
        """Return how the dashboard may be reached on this port, and the address to open."""
        made = None if self.token_file is not None else self.token or secrets.token_urlsafe(24)
        tokens: Tokens = TokenFile(self.token_file, report) if self.token_file is not None else ProcessToken(made or "")
        hosts = {name.lower() for name in self.allowed_hosts}
        if self.host not in _EVERYWHERE:
            hosts.add(f"{_address(self.host)}:{port}")
        access = Access(
            base_path=self.base_path.rstrip("/"),
            hosts=frozenset(hosts),
            read_only=self.read_only,
            tokens=tokens,
            token_in_url=made is not None,
            behind_proxy=self.behind_proxy,
            port=port,
        )
        return access, self._url(access, port) + ("" if made is None else f"login?token={made}")

    def _url(self, access: Access, port: int) -> str:
        name = next(iter(self.allowed_hosts), "localhost") if self.host in _EVERYWHERE else self.host
        where = name if urlsplit(f"//{name}").port else f"{_address(name)}:{port}"
        return f"http{'' if self.tls_cert is None else 's'}://{where}{access.base_path}/"

    def served_with(self) -> dict[str, Any]:
        """Return the server's settings that follow from these options."""
        found: dict[str, Any] = {"ws_max_size": Limits().message_bytes}
        if self.tls_cert is not None:
            found |= {"ssl_certfile": str(self.tls_cert), "ssl_keyfile": str(self.tls_key)}
        if self.behind_proxy:
            found |= {"proxy_headers": True, "forwarded_allow_ips": "*"}
        return found


def _address(host: str) -> str:
    """The host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host
