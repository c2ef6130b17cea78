"""Faults of rows, and the dead letters that faulty records become. Pure.

A reader or processor that cannot process a record does not drop it: it sets a fault in the row. Sinks keep such rows as
dead letters, with reason and origin, in the same commit as the good rows of the batch. A fault of kind `batch` fails
the whole batch instead, and so does a fault of kind `unavailable`, which does not count as an attempt. A fault of kind
`damage` is a dead letter too, and the data of its partition is damaged: the partition becomes FAILED, with its good
rows published. A fault of kind `cut` does not belong to a record: its item, and everything after it, is left for the
next batch. Where positions are not items, its `raw` is the position of the next batch as JSON.
"""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RECORD = "record"
BATCH = "batch"
UNAVAILABLE = "unavailable"
DAMAGE = "damage"
CUT = "cut"
COLUMNS, ROW = "columns", "row"
"""Forms of `raw` other than the text of the record: JSON of the source's columns, or of the output of a processor."""
MAX_RAW_BYTES = 64 * 1024
"""Bytes of a record in its fault, and in the line of its letter: the whole of a larger record is kept beside it."""
MAX_REASON = 1000


@dataclass(frozen=True, slots=True)
class Fault:
    """The error of a row. `raw` is the record as it was read, or its beginning."""

    kind: str
    reason: str
    raw: str | None = None
    base64: bool = False
    """Whether `raw` is base64, because the record is not UTF-8."""
    size: int | None = None
    """Bytes of the whole record, when `raw` is only its beginning."""
    form: str | None = None
    """The form of `raw` if it is not the text that was read: `COLUMNS` or `ROW`."""
    whole: bool = False
    """Whether no row of the record is staged, so that the record can be sent again; only known in the staging task."""

    def encode(self) -> str:
        """The fault as text for the column `_fault`."""
        fields: dict[str, Any] = {"kind": self.kind, "reason": self.reason[:MAX_REASON]}
        return json.dumps(fields | self.record(), ensure_ascii=False)

    def record(self) -> dict[str, Any]:
        """The record, as the fields of a dead letter."""
        fields: dict[str, Any] = {} if self.raw is None else {"raw": self.raw}
        if self.base64:
            fields["encoding"] = "base64"
        if self.size is not None:
            fields["size"] = self.size
        if self.form is not None:
            fields["form"] = self.form
        return fields


def record_fault(reason: str, raw: bytes, size: int | None = None) -> Fault:
    """The fault of a record that becomes a dead letter. `size`: its bytes, if `raw` is only its beginning."""
    kept, whole = raw[:MAX_RAW_BYTES], len(raw) if size is None else size
    more = whole if whole > len(kept) else None
    try:
        return Fault(RECORD, reason, _text(kept, cut=more is not None), size=more)
    except UnicodeDecodeError:
        return Fault(RECORD, reason, base64.b64encode(kept).decode(), base64=True, size=more)


def batch_fault(reason: str) -> Fault:
    """The whole batch cannot be read."""
    return Fault(BATCH, reason)


def unavailable_fault(reason: str) -> Fault:
    """The whole batch cannot be read now; a later try may succeed."""
    return Fault(UNAVAILABLE, reason)


def damage_fault(reason: str) -> Fault:
    """Nothing can be read from here on; what was read before is good."""
    return Fault(DAMAGE, reason)


def cut_fault(position: Any = None) -> Fault:
    """The batch ends before this item.

    `position`: where the next batch begins, if the item alone does not determine it.
    """
    return Fault(CUT, "the batch ends here", None if position is None else json.dumps(position))


def decode_fault(text: str) -> Fault:
    """The fault in the text of a column. Text that is not a fault fails the whole batch."""
    try:
        fields = json.loads(text)
        kind = fields["kind"]
    except (ValueError, TypeError, KeyError):
        return Fault(BATCH, f"a row has a fault that cannot be read: {text[:200]}")
    raw = fields.get("raw")
    if kind == CUT:
        return Fault(CUT, str(fields.get("reason", text)), None if raw is None else str(raw))
    if kind != RECORD:
        return Fault(kind if kind in {UNAVAILABLE, DAMAGE} else BATCH, str(fields.get("reason", text)))
    return Fault(
        RECORD,
        str(fields.get("reason", "")),
        None if raw is None else str(raw),
        fields.get("encoding") == "base64",
        fields.get("size"),
        fields.get("form"),
    )


def dead_letter(pipeline: str, key: str, item: int, fault: Fault, more: Mapping[str, Any] = {}) -> bytes:
    """A line of a dead-letter file. `more`: fields that `NewLetter` has besides the fault."""
    origin = {"pipeline": pipeline, "key": key, "item": item}
    fields = {"reason": fault.reason, **fault.record(), **more, "origin": origin}
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _text(kept: bytes, *, cut: bool) -> str:
    # A character that the bound has cut in two is not an error of the record.
    return codecs.getincrementaldecoder("utf-8")().decode(kept, final=not cut)
