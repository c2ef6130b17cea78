"""One POST to a URL from a configuration file; the URL is not trusted.

It uses `http.client`, not `urllib.request` or a package: `http.client` follows no redirects, uses no proxy, and can
connect to exactly the address that was checked. Resolving the name a second time could return another address.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from urllib.parse import SplitResult, urlsplit

from holdfast.config.secrets import Secret
from holdfast.observe.addresses import allowed, resolved

_LATER = {408, 425, 429}
_REFUSED = "its address is private, local or reserved; alerts.webhook.allow_private allows the first two"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a request; `retry` if the same one may succeed later. The reason never contains the URL."""

    done: bool
    retry: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to post. `timeout` limits a whole request, from connecting to the last byte."""

    url: Secret
    timeout: float
    allow_private: bool = False

    def refusal(self) -> str | None:
        """Return why requests are refused, if that is certain now. Blocks while the name is resolved."""
        try:
            return None if self._addresses(urlsplit(self.url.reveal())) else _REFUSED
        except (OSError, ValueError):
            return None

    def post(self, body: bytes) -> Outcome:
        """Post JSON. Blocks, and never raises for errors of the network or the server. Redirects are refused."""
        url = urlsplit(self.url.reveal())
        try:
            addresses = self._addresses(url)
            if not addresses:
                return Outcome(done=False, reason=_REFUSED)
            return _judged(self._status(url, addresses, body))
        except (OSError, HTTPException, ValueError) as error:
            return Outcome(done=False, retry=True, reason=_reason(error))

    def _addresses(self, url: SplitResult) -> list[str]:
        found = resolved(url.hostname or "", _port(url))
        return [address for address in found if allowed(address, private=self.allow_private)]

    def _status(self, url: SplitResult, addresses: Sequence[str], body: bytes) -> int:
        connection = _CheckedConnection(url, addresses, self.timeout)
        # The socket timeout applies to each read: a server that sends a byte now and then would block for ever.
        watchdog = threading.Timer(self.timeout, connection.cut)
        watchdog.daemon = True
        watchdog.start()
        try:
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            headers = {"Content-Type": "application/json", "User-Agent": "holdfast", "Connection": "close"}
            connection.request("POST", path, body, headers)
            return connection.getresponse().status
        finally:
            watchdog.cancel()
            connection.close()


class _CheckedConnection(HTTPConnection):
    """Connects to one of the given addresses, whatever the name resolves to now."""

    def __init__(self, url: SplitResult, addresses: Sequence[str], timeout: float) -> None:
        super().__init__(url.hostname or "", _port(url), timeout=timeout)
        self._addresses = addresses
        self._give_up_at = time.monotonic() + timeout
        self._encrypted = url.scheme == "https"
        self.default_port = 443 if self._encrypted else 80

    def connect(self) -> None:
        self.sock = self._reached()
        if self._encrypted:
            # The certificate is checked against the name, not the address.
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
            self.sock.do_handshake()
        self._left()

    def cut(self) -> None:
        """Abort a request that runs in another thread."""
        if self.sock is not None:
            try:
                # Not `SSLSocket.shutdown`, which must not run during a read.
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
            except OSError:
                return

    def _reached(self) -> socket.socket:
        for address in self._addresses[:-1]:
            try:
                return socket.create_connection((address, self.port), self._left())
            except OSError:
                continue
        return socket.create_connection((self._addresses[-1], self.port), self._left())

    def _left(self) -> float:
        left = self._give_up_at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _port(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _judged(status: int) -> Outcome:
    later = status in _LATER or status >= 500
    return Outcome(done=200 <= status < 300, retry=later, reason=f"it responded with status {status}")


def _reason(error: Exception) -> str:
    """Return the kind of error without its text, which may quote the URL or the response."""
    words = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return f"{type(error).__name__}: {words}" if isinstance(words, str) else type(error).__name__
