"""One staged file, and what its receipt says of it."""

from __future__ import annotations

from typing import Any

from holdfast.buckets.bucket import StagedWriter
from holdfast.flow.format import FormatWriter
from holdfast.leases.lease import Json


class OpenFile:
    """Open for rows of a format, or for lines."""

    def __init__(self, raw: StagedWriter, key: str, first: int, place: str = "") -> None:
        self.first = first
        self.size = 0
        self.writer: FormatWriter | None = None
        self._raw = raw
        self._key = key
        self._place = place
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
        """What the format's writer calls."""
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
        """Write the end of the file. Answers what is left to be closed; `told` follows with what closing answered."""
        if self.writer is not None:
            self.writer.close()
        return self._raw

    def close(self) -> dict[str, Json]:
        """End and close it. Answers its entry in the receipt."""
        return self.told(self.end().close())

    def told(self, closed: tuple[Json, int, str]) -> dict[str, Json]:
        """Its entry in the receipt."""
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
        return entry | ({"place": self._place} if self._place else {})
