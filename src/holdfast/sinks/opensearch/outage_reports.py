"""How the node hears of trouble while its tasks still wait: Spark returns what a task reports only when it ends.

A task sends datagrams to the node, which looks for them whenever it is asked for news. One that is lost, or cannot be
sent because nothing leads from that executor to the node, is no harm: what the task raises in the end says the same.
"""

from __future__ import annotations

import json
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass

MOST_BYTES = 1200
"""A datagram of this size passes every network in one piece."""
MOST_LETTERS = 250
MOST_AT_ONCE = 1000


@dataclass(frozen=True)
class TroubleAddress:
    """Where a task tells of trouble. Picklable; `key` shows that the sender is one of the node's own tasks."""

    host: str
    port: int
    key: str

    def tell(self, reason: str) -> None:
        """Send the reason. Neither blocks nor raises."""
        told = {"key": self.key, "reason": reason[:MOST_LETTERS]}
        message = json.dumps(told, ensure_ascii=False).encode("utf-8", "replace")
        with suppress(OSError):
            family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as line:
                line.setblocking(False)
                line.sendto(message, address)


class TroubleListener:
    """On the node, under the address that executors know the Spark driver by. Raises `OSError` if it cannot listen."""

    def __init__(self) -> None:
        host, bound_to = _driver_addresses()
        family, kind, protocol, _, address = socket.getaddrinfo(bound_to, 0, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setblocking(False)
        self._socket.bind(address)
        self.address = TroubleAddress(host, self._socket.getsockname()[1], secrets.token_hex(16))

    def heard(self) -> str | None:
        """The last reason since the previous call, if any. Does not block."""
        reason = None
        with suppress(OSError):
            for _ in range(MOST_AT_ONCE):
                reason = self._reason(self._socket.recv(MOST_BYTES)) or reason
        return reason

    def _reason(self, message: bytes) -> str | None:
        try:
            told = json.loads(message)
            trusted = secrets.compare_digest(str(told["key"]).encode(), self.address.key.encode())
            return str(told["reason"]) if trusted else None
        except (ValueError, KeyError, TypeError):
            return None

    def close(self) -> None:
        self._socket.close()


def _driver_addresses() -> tuple[str, str]:
    """The name under which executors reach the driver, and what to bind to; loopback without a Spark session."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 - Python has no public way to ask
    if context is None:
        return "127.0.0.1", "127.0.0.1"
    host = context.getConf().get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
    return host, context.getConf().get("spark.driver.bindAddress", host) or host
