"""Files that a task stages: names that no other attempt has, and each file's entry in the receipt."""

from __future__ import annotations

import uuid
from typing import Any

from holdfast.buckets.bucket import Bucket, StagedWriter
from holdfast.flow.format import FormatWriter
from holdfast.flow.names import staging_key
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Json


class StagingAttempt:
    """One attempt of one task: the files that it stages have names that no other attempt can have."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._id = uuid.uuid4().hex
        self._files = 0

    def stage(self, batch: StagedBatch, key: str) -> StagedWriter:
        """Open a staged file of the batch that will get the final key `key`."""
        self._files += 1
        return self.bucket.stage(staging_key(batch.name, batch.token, batch.id, f"{self._id}-{self._files}"), key)


class OpenFile:
    """A staged file that is open for rows of a format, or for lines."""

    def __init__(self, raw: StagedWriter, key: str, first: int, output_folder: str = "") -> None:
        self.first = first
        self.size = 0
        self.writer: FormatWriter | None = None
        self._raw = raw
        self._key = key
        self._output_folder = output_folder
        self._last = first
        self._rows = 0

    @property
    def buffered(self) -> int:
        """Bytes that wait in memory, in the format's writer or on the way to the bucket."""
        waiting = 0 if self.writer is None else self.writer.buffered
        return waiting + int(getattr(self._raw, "buffered", 0))

    def flush(self) -> None:
        if self.writer is not None:
            self.writer.flush()

    def write(self, data: Any) -> int:
        """Called by the format's writer."""
        written = self._raw.write(data)
        self.size += written
        return written

    def write_rows(self, first: int, last: int, rows: Any) -> None:
        assert self.writer is not None
        assert first >= self.first
        self._last = max(self._last, last)
        self._rows += rows.num_rows
        self.writer.write(rows)

    def write_line(self, item: int, line: bytes) -> None:
        self._last = max(self._last, item)
        self._rows += 1
        self.write(line)

    def end(self) -> StagedWriter:
        """Write the end of the file. Returns the writer that is left to be closed; `entry` takes what that returns."""
        if self.writer is not None:
            self.writer.close()
        return self._raw

    def close(self) -> dict[str, Json]:
        """End and close the file. Returns its entry in the receipt."""
        return self.entry(self.end().close())

    def entry(self, closed: tuple[Json, int, str]) -> dict[str, Json]:
        """The file's entry in the receipt, with the handle, size and SHA-256 that closing has returned."""
        handle, size, sha256 = closed
        entry = {
            "staged": handle,
            "key": self._key,
            "rows": self._rows,
            "size": size,
            "sha256": sha256,
            "first": self.first,
            "last": self._last,
        }
        return entry | ({"place": self._output_folder} if self._output_folder else {})
