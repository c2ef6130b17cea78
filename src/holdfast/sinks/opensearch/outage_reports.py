"""Reports of outages from tasks to their node. Spark returns the result of a task only when it has ended; a task that
waits for a cluster should be noticed earlier.

A task sends datagrams, which the node reads when it collects events. A datagram that is lost, or cannot be sent because
the executor cannot reach the node, does no harm: the task raises the same reason in the end.
"""

from __future__ import annotations

import json
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass

MAX_DATAGRAM_BYTES = 1200
"""A datagram of this size is not fragmented."""
MAX_REASON_LENGTH = 250
MAX_DATAGRAMS_READ = 1000


@dataclass(frozen=True)
class OutageReporter:
    """Sends reports to a node. Picklable; `key` proves that a report comes from a task of that node."""

    host: str
    port: int
    key: str

    def report(self, reason: str) -> None:
        """Send the reason. Neither blocks nor raises."""
        fields = {"key": self.key, "reason": reason[:MAX_REASON_LENGTH]}
        message = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
        with suppress(OSError):
            family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as sender:
                sender.setblocking(False)
                sender.sendto(message, address)


class OutageListener:
    """Receives reports on the node, at the address of the Spark driver. Raises `OSError` if it cannot listen."""

    def __init__(self) -> None:
        host, bound_to = _driver_addresses()
        family, kind, protocol, _, address = socket.getaddrinfo(bound_to, 0, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setblocking(False)
        self._socket.bind(address)
        self.reporter = OutageReporter(host, self._socket.getsockname()[1], secrets.token_hex(16))

    def last_reason(self) -> str | None:
        """The last reason that was reported since the previous call, if any. Does not block."""
        reason = None
        with suppress(OSError):
            for _ in range(MAX_DATAGRAMS_READ):
                reason = self._reason(self._socket.recv(MAX_DATAGRAM_BYTES)) or reason
        return reason

    def _reason(self, message: bytes) -> str | None:
        try:
            fields = json.loads(message)
            trusted = secrets.compare_digest(str(fields["key"]).encode(), self.reporter.key.encode())
            return str(fields["reason"]) if trusted else None
        except (ValueError, KeyError, TypeError):
            return None

    def close(self) -> None:
        self._socket.close()


def _driver_addresses() -> tuple[str, str]:
    """The host under which executors reach the driver, and the address to bind to; loopback without a Spark session."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 - PySpark has no public way to get it
    if context is None:
        return "127.0.0.1", "127.0.0.1"
    host = context.getConf().get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
    return host, context.getConf().get("spark.driver.bindAddress", host) or host
