"""Where dead letters go: to lines of a hidden file, published with the commit, or to an index of their own."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.buckets.bucket import Bucket
from holdfast.errors import Unavailable
from holdfast.flow.fault import ROW, Fault, dead_letter
from holdfast.flow.letter import LetterId
from holdfast.flow.names import dead_letter_key, staging_key
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Json
from holdfast.sinks.opensearch.bulk_body import Body, Entries
from holdfast.sinks.opensearch.indexes import index_name_of

KEPT_IN_MEMORY = 8 << 20
SENT_TOGETHER = 500

Send = Callable[[Body], None]


def letters_index(pipeline: str) -> str:
    """Where a pipeline's dead letters go unless the settings say otherwise."""
    return index_name_of(f"{pipeline}-deadletters")


def letter_id(sink: str, batch: StagedBatch, item: int, fault: Fault) -> LetterId:
    """The same for the same letter, and another one for one that comes of sending a record again.

    A record that became several rows may have several letters, told apart by what they hold.
    """
    named = f"{batch.key}\0{batch.incarnation}\0{batch.name.label}\0{fault.raw if fault.form == ROW else ''}"
    digest = hashlib.blake2b(named.encode("utf-8", "surrogatepass"), digest_size=15).digest()
    return LetterId(f"{sink}.{base64.urlsafe_b64encode(digest).decode()}", item)


def document_id(letter: LetterId) -> str:
    """The letter's document in its index."""
    return f"{letter.place}.{letter.number}"


class Letters(ABC):
    """Dead letters of one attempt of one task."""

    @abstractmethod
    def write(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        """Keep these. May return before they are durable."""

    @abstractmethod
    def finish(self, batch: StagedBatch) -> list[Json]:
        """The files that hold the letters of the batch; durable."""

    @abstractmethod
    def abandon(self, batch: StagedBatch) -> None:
        """The batch has failed. Never raises."""


@dataclass(frozen=True)
class LettersToFiles:
    """How letters go to files below a root. Picklable."""

    bucket: Bucket

    def begin(self, send: Send) -> Letters:  # noqa: ARG002 - files need no sender
        return _Files(self.bucket)


@dataclass(frozen=True)
class LettersToIndex:
    """How letters go to an index. Picklable."""

    sink: str
    index: str | None = None
    """`<pipeline>-deadletters` unless given."""

    def begin(self, send: Send) -> Letters:
        return _Indexed(self.sink, self.index, send)


class _Files(Letters):
    """One file for each batch. Its name tells the first item, so that it is written when all letters are known."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._attempt = uuid.uuid4().hex
        self._open: dict[str, _Waiting] = {}

    def write(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        if batch.id not in self._open:
            self._open[batch.id] = _Waiting()
        for item, fault in faults:
            self._open[batch.id].add(item, dead_letter(batch.pipeline, batch.key, item, fault))

    def finish(self, batch: StagedBatch) -> list[Json]:
        waiting = self._open.pop(batch.id, None)
        if waiting is None:
            return []
        key = dead_letter_key(batch.name, batch.generation, waiting.first)
        place = staging_key(batch.name, batch.token, batch.id, f"{self._attempt}-letters")
        writer = self._bucket.stage(place, key)
        for piece in waiting.pieces():
            writer.write(piece)
        handle, size, sha256 = writer.close()
        told = {"rows": waiting.count, "first": waiting.first, "last": waiting.last}
        return [{"staged": handle, "key": key, "size": size, "sha256": sha256, **told}]

    def abandon(self, batch: StagedBatch) -> None:
        waiting = self._open.pop(batch.id, None)
        if waiting is not None:
            with suppress(OSError, Unavailable):
                waiting.close()


class _Waiting:
    """Letters that wait for the end of their batch, on disk if there are many."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(KEPT_IN_MEMORY)  # noqa: SIM115 - closed when all is written
        self.count = 0
        self.first = self.last = -1

    def add(self, item: int, line: bytes) -> None:
        self._file.write(line)
        self.count += 1
        self.first = item if self.first < 0 else min(self.first, item)
        self.last = max(self.last, item)

    def pieces(self) -> Any:
        self._file.seek(0)
        while piece := self._file.read(1 << 20):
            yield piece
        self.close()

    def close(self) -> None:
        self._file.close()


class _Indexed(Letters):
    """Each letter is a document whose id is its origin, so that one that is written twice is there once."""

    def __init__(self, sink: str, index: str | None, send: Send) -> None:
        self._sink = sink
        self._index = index
        self._send = send

    def write(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        index = self._index or letters_index(batch.pipeline)
        for at in range(0, len(faults), SENT_TOGETHER):
            some = faults[at : at + SENT_TOGETHER]
            lines = [self._entry(batch, item, fault) for item, fault in some]
            borders = np.concatenate([[0], np.cumsum([len(line) for line in lines])]).astype(np.int64)
            items = np.array([item for item, _ in some], np.int64)
            texts = pa.array([fault.raw or "" for _, fault in some]).cast(pa.binary())
            self._send(Body([Entries(batch, b"".join(lines), borders, items, texts)], letters=index))

    def finish(self, batch: StagedBatch) -> list[Json]:  # noqa: ARG002 - the sender waits for all of a batch
        return []

    def abandon(self, batch: StagedBatch) -> None:
        """What was sent stays: it is written again, under the same id."""

    def _entry(self, batch: StagedBatch, item: int, fault: Fault) -> bytes:
        identity = letter_id(self._sink, batch, item, fault)
        action = json.dumps({"index": {"_id": document_id(identity)}}).encode()
        told = json.loads(dead_letter(batch.pipeline, batch.key, item, fault))
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        letter = {**told, "sink": self._sink, "at": now, "place": identity.place, "number": identity.number}
        return b"%s\n%s\n" % (action, json.dumps(letter, ensure_ascii=False).encode("utf-8", "backslashreplace"))
