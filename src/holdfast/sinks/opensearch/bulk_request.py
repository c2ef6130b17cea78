"""One bulk request: sent once, and its outcome as one of four answers. Repeats nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from holdfast.sinks.opensearch.access import Access, is_answer, short
from holdfast.sinks.opensearch.bulk_body import Body
from holdfast.sinks.opensearch.bulk_response import ANSWERED_FIELDS, Verdicts, is_of_the_cluster, no_answer, verdicts

GZIP_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Away:
    """No answer, or one that says that it is not possible now. What was sent may have been written."""

    reason: str


@dataclass(frozen=True, slots=True)
class Busy:
    """The whole request was turned away: the server has too much to do."""

    reason: str


@dataclass(frozen=True, slots=True)
class TooMuch:
    """The whole request was refused, for its size or for something in it. Smaller ones tell more."""

    reason: str


Answer = Verdicts | Away | Busy | TooMuch


@dataclass(frozen=True)
class Target:
    """Where bodies go. Picklable."""

    access: Access
    index: str | None
    """The index of all documents; None if each names its own."""
    pipeline: str | None = None
    conflict_is_done: bool = False
    """A version that is there already is the same one or a later one."""


class Poster:
    """Sends bodies; used by several threads."""

    def __init__(self, target: Target, connections: int) -> None:
        self._target = target
        self._client = target.access.connect(connections, verbatim=True)

    def post(self, body: Body) -> Answer:
        """Blocks until there is an answer or the time for it is over."""
        from opensearchpy.exceptions import ConnectionError as NoConnection
        from opensearchpy.exceptions import SerializationError, TransportError

        try:
            answer = self._client.transport.perform_request(
                "POST",
                self._path(body),
                params=self._params(body),
                **self._packed(body.bytes()),
            )
            conflict_is_done = self._target.conflict_is_done and not body.letters
            return verdicts(str(answer), sent=len(body), conflict_is_done=conflict_is_done)
        except NoConnection as error:
            return Away(f"{self._target.access.place} does not answer: {short(error)}")
        except TransportError as error:
            return self._refusal(error)
        except SerializationError as error:
            return Away(f"{self._target.access.place}: {no_answer(error)}")
        except ValueError as error:
            return Away(f"{self._target.access.place}: {error}")

    def close(self) -> None:
        self._client.close()

    def _path(self, body: Body) -> str:
        index = body.letters or self._target.index
        return "/_bulk" if index is None else f"/{quote(index, safe='')}/_bulk"

    def _params(self, body: Body) -> dict[str, Any]:
        named = {} if self._target.pipeline is None or body.letters else {"pipeline": self._target.pipeline}
        return {"filter_path": ANSWERED_FIELDS, **named}

    def _packed(self, data: bytes) -> dict[str, Any]:
        headers = {"content-type": "application/x-ndjson"}
        if not self._target.access.gzip:
            return {"body": data, "headers": headers}
        from isal import igzip

        # The client would do it by itself, at the level that takes longest.
        return {"body": igzip.compress(data, GZIP_LEVEL), "headers": {**headers, "content-encoding": "gzip"}}

    def _refusal(self, error: Any) -> Answer:
        status, reason = error.status_code, short(error)
        if status == 429:
            return Busy(reason)
        # A proxy that has a limit of its own is believed: smaller requests pass it.
        if status == 413:
            return TooMuch(reason)
        if status < 500 and not is_answer(error):
            return Away(f"{self._target.access.place}: {no_answer(reason)}")
        if status == 400 and not is_of_the_cluster(error.info.get("error")):
            return TooMuch(reason)
        return Away(f"{self._target.access.place} cannot do it now: {reason}")
