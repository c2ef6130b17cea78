"""How connections to SQL servers are encrypted: settings of TLS, in the terms of the drivers."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from holdfast.config.hosts import is_local

TLS_HINT = "; tls.ca names the authorities to trust, tls.mode whether a certificate is required"
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Where distributions of Linux keep the system's authorities."""


class SqlTls(Protocol):
    """The settings `tls` of a store or source on an SQL server."""

    @property
    def mode(self) -> str | None: ...
    @property
    def ca(self) -> Path | None: ...
    @property
    def cert(self) -> Path | None: ...
    @property
    def key(self) -> Path | None: ...


def libpq_tls(given: Mapping[str, Any], tls: SqlTls) -> dict[str, str]:
    """The parameters of libpq for TLS. `given`: those of the URL, which the settings of `tls` override."""
    mode = tls.mode or given.get("sslmode") or (None if _stays_here(given) else "verify-full")
    ca = tls.ca or given.get("sslrootcert") or (_system_authorities() if mode == "verify-full" else None)
    words = {"sslmode": mode, "sslrootcert": ca, "sslcert": tls.cert, "sslkey": tls.key}
    return {name: str(value) for name, value in words.items() if value is not None}


def pymysql_tls(host: str, tls: SqlTls, *, is_given: bool, check_host: bool = True) -> dict[str, Any]:
    """The arguments of PyMySQL for TLS. `is_given`: whether the file has any setting of `tls`. Raises `OSError`."""
    if tls.mode == "disable":
        return {"ssl_disabled": True}
    if not is_given and is_local(host):
        return {}
    # The driver's own settings verify nothing where no file of authorities is given.
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    context.check_hostname = check_host and tls.mode in {None, "verify-full"}
    if tls.mode == "require":
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}


def is_encrypted(connection: Any) -> bool:
    """Whether a PyMySQL connection uses TLS: drivers before 1.2 do without it if the server does not offer it."""
    return isinstance(getattr(connection, "_sock", None), ssl.SSLSocket)


def _stays_here(given: Mapping[str, Any]) -> bool:
    hosts = given.get("hostaddr") or given.get("host") or os.environ.get("PGHOST", "")
    # The file of services may name any host.
    return "service" not in given and all(is_local(host) for host in hosts.split(","))


def _system_authorities() -> str | None:
    """The file of the system's authorities; None if libpq has a file of its own to read."""
    if "PGSSLROOTCERT" in os.environ or (Path.home() / ".postgresql/root.crt").exists():
        return None
    # Not only "system": the OpenSSL inside psycopg's wheels looks in a folder that systems do not have.
    found = (ssl.get_default_verify_paths().cafile, *_BUNDLES)
    return next((path for path in found if path and Path(path).exists()), "system")
