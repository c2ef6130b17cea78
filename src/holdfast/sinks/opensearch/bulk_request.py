"""One bulk request, sent once: its outcome is one of four. Nothing is retried here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from holdfast.sinks.opensearch.access import Access, is_cluster_response, summary
from holdfast.sinks.opensearch.bulk_body import Body
from holdfast.sinks.opensearch.bulk_response import (
    RESPONSE_FIELDS,
    Verdicts,
    is_cluster_error,
    not_a_response,
    parse_response,
)

GZIP_LEVEL = 1


@dataclass(frozen=True, slots=True)
class ClusterAway:
    """There is no response, or the cluster cannot serve the request now. The documents may have been written."""

    reason: str


@dataclass(frozen=True, slots=True)
class Busy:
    """The whole request was rejected because the server is overloaded."""

    reason: str


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The whole request was refused, for its size or its content. Smaller requests show which document is at fault."""

    reason: str


BulkOutcome = Verdicts | ClusterAway | Busy | RequestRefused


@dataclass(frozen=True)
class BulkTarget:
    """Where bodies are sent. Picklable."""

    access: Access
    index: str | None
    """The index of all documents; None if each entry names its index."""
    pipeline: str | None = None
    conflict_is_done: bool = False
    """Whether a version conflict counts as done: the index has the same version or a later one."""


class BulkClient:
    """Sends bodies. Several threads may use it."""

    def __init__(self, target: BulkTarget, connections: int) -> None:
        self._target = target
        self._client = target.access.connect(connections, verbatim=True)

    def post(self, body: Body) -> BulkOutcome:
        """Send a body. Blocks until there is a response or the request has timed out."""
        from opensearchpy.exceptions import ConnectionError as NoConnection
        from opensearchpy.exceptions import SerializationError, TransportError

        try:
            response = self._client.transport.perform_request(
                "POST",
                self._path(body),
                params=self._params(body),
                **self._packed(body.bytes()),
            )
            conflict_is_done = self._target.conflict_is_done and not body.letters
            return parse_response(str(response), sent=len(body), conflict_is_done=conflict_is_done)
        except NoConnection as error:
            return ClusterAway(f"{self._target.access.label} does not respond: {summary(error)}")
        except TransportError as error:
            return self._refusal(error)
        except SerializationError as error:
            return ClusterAway(f"{self._target.access.label}: {not_a_response(error)}")
        except ValueError as error:
            return ClusterAway(f"{self._target.access.label}: {error}")

    def close(self) -> None:
        self._client.close()

    def _path(self, body: Body) -> str:
        index = body.letters or self._target.index
        return "/_bulk" if index is None else f"/{quote(index, safe='')}/_bulk"

    def _params(self, body: Body) -> dict[str, Any]:
        ingest = {} if self._target.pipeline is None or body.letters else {"pipeline": self._target.pipeline}
        return {"filter_path": RESPONSE_FIELDS, **ingest}

    def _packed(self, data: bytes) -> dict[str, Any]:
        headers = {"content-type": "application/x-ndjson"}
        if not self._target.access.gzip:
            return {"body": data, "headers": headers}
        from isal import igzip

        # The client can compress, too, but only at the slowest level.
        return {"body": igzip.compress(data, GZIP_LEVEL), "headers": {**headers, "content-encoding": "gzip"}}

    def _refusal(self, error: Any) -> BulkOutcome:
        status, reason = error.status_code, summary(error)
        if status == 429:
            return Busy(reason)
        # Also a proxy may have a limit: smaller requests pass it.
        if status == 413:
            return RequestRefused(reason)
        if status < 500 and not is_cluster_response(error):
            return ClusterAway(f"{self._target.access.label}: {not_a_response(reason)}")
        if status == 400 and not is_cluster_error(error.info.get("error")):
            return RequestRefused(reason)
        return ClusterAway(f"{self._target.access.label} cannot serve the request now: {reason}")
