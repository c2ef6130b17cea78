"""Faults of rows, and the dead letters that faulty records become. Pure.

A reader or processor that cannot handle a record does not drop it: it gives the row a fault. The sinks keep such rows
as dead letters, with reason and origin, in the same commit as the batch's good rows. A fault of kind `batch` fails the
whole batch instead, and so does one of kind `unavailable`, which counts no attempt. One of kind `damage` is a dead
letter, too, and what its partition is read from is damaged: the partition will be FAILED, with its good rows published.
One of kind `cut` is of no record: its item, and all after it, are left for the next batch.
"""

from __future__ import annotations

import base64
import codecs
import json
from dataclasses import dataclass
from typing import Any

RECORD = "record"
BATCH = "batch"
UNAVAILABLE = "unavailable"
DAMAGE = "damage"
CUT = "cut"
COLUMNS, ROW = "columns", "row"
"""Forms of `raw` that are not the record's own text: JSON of the source's columns, or of what a processor had made."""
MAX_RAW_BYTES = 64 * 1024
MAX_REASON = 1000


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a row. `raw` is the record as it was read, or its beginning."""

    kind: str
    reason: str
    raw: str | None = None
    base64: bool = False
    """The record is no UTF-8, and `raw` is in base64."""
    size: int | None = None
    """Bytes of the whole record, when `raw` is only its beginning."""
    form: str | None = None
    """What `raw` is, where it is not the text that was read: `COLUMNS` or `ROW`."""

    def encode(self) -> str:
        """As the column `_fault` has it."""
        told: dict[str, Any] = {"kind": self.kind, "reason": self.reason[:MAX_REASON]}
        return json.dumps(told | self.record(), ensure_ascii=False)

    def record(self) -> dict[str, Any]:
        """The record, in the words of a dead letter."""
        told: dict[str, Any] = {} if self.raw is None else {"raw": self.raw}
        if self.base64:
            told["encoding"] = "base64"
        if self.size is not None:
            told["size"] = self.size
        if self.form is not None:
            told["form"] = self.form
        return told


def record_fault(reason: str, raw: bytes, size: int | None = None) -> Fault:
    """This record belongs to the dead letters. `size`: its bytes, if `raw` is known to be its beginning only."""
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
    """The whole batch cannot be read now; waiting helps."""
    return Fault(UNAVAILABLE, reason)


def damage_fault(reason: str) -> Fault:
    """From here on nothing can be read; what was read before is good."""
    return Fault(DAMAGE, reason)


def cut_fault() -> Fault:
    """The batch ends before this item."""
    return Fault(CUT, "the batch has as many records as it may have")


def decode_fault(text: str) -> Fault:
    """The fault that a column's text tells of. Text that is none is a reason to distrust the whole batch."""
    try:
        told = json.loads(text)
        kind = told["kind"]
    except (ValueError, TypeError, KeyError):
        return Fault(BATCH, f"a row has a fault that cannot be read: {text[:200]}")
    if kind != RECORD:
        return Fault(kind if kind in {UNAVAILABLE, DAMAGE, CUT} else BATCH, str(told.get("reason", text)))
    raw = told.get("raw")
    return Fault(
        RECORD,
        str(told.get("reason", "")),
        None if raw is None else str(raw),
        told.get("encoding") == "base64",
        told.get("size"),
        told.get("form"),
    )


def dead_letter(pipeline: str, key: str, item: int, fault: Fault) -> bytes:
    """One line of a dead-letter file."""
    origin = {"pipeline": pipeline, "key": key, "item": item}
    told = {"reason": fault.reason, **fault.record(), "origin": origin}
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _text(kept: bytes, *, cut: bool) -> str:
    # A character that the bound cut in two is no fault of the record.
    return codecs.getincrementaldecoder("utf-8")().decode(kept, final=not cut)
