"""Dead letters that a sink keeps: people look at them and send them through the pipeline again.

A letter is never deleted. A letter that was sent again is marked with the run that did it; if the record fails again,
there is another letter.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from holdfast.errors import BatchError
from holdfast.flow.fault import DAMAGE, MAX_RAW_BYTES, RECORD, ROW, Fault, record_fault


@dataclass(frozen=True, slots=True, order=True)
class LetterId:
    """Identifies a letter of a sink. The letter of an id never changes."""

    container: str
    """The key of the file that holds the letter, or, for letters in an index, the prefix of their ids."""
    number: int
    """The letter's line in the file, or its item."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A record that could not be processed."""

    id: LetterId
    key: str
    """The partition of the record."""
    item: int
    reason: str
    raw: str | None = None
    encoding: str | None = None
    size: int | None = None
    """Bytes of the whole record, when `raw` is only its beginning."""
    form: str | None = None
    at: float | None = None
    """When the letter became visible, in seconds since 1970, if known."""
    redriven: str | None = None
    """The run that has sent the letter again."""
    source: Mapping[str, Any] | None = None
    """Where the source has the record, and what belongs to it besides `raw`, such as key and headers of a message.

    None in letters of earlier versions. Its `value` is null if the record itself is null."""
    row: str | None = None
    """JSON of the row that a sink has refused, if processors had changed the record; at most its beginning."""
    missing: str | None = None
    """Why the record could not be read from the source again: then `raw` is what the pipeline had of it."""
    spilled: Mapping[str, Any] | None = None
    """Where the letter box keeps the whole of a large record, with its size and SHA-256; `raw` is its beginning."""

    @property
    def is_whole(self) -> bool:
        """Whether everything that the source has of the record is kept."""
        return self.source is not None and self.missing is None

    @property
    def is_null(self) -> bool:
        """Whether the record is null, as a tombstone is."""
        return self.source is not None and "value" in self.source and self.source["value"] is None

    def digest(self) -> bytes:
        """A digest that is the same for all letters of one record: several of the rows made from it may have failed."""
        spilled = None if self.spilled is None else self.spilled["sha256"]
        record = [self.item, self.raw, self.encoding, self.form, self.source, spilled]
        return hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=16).digest()

    @property
    def refusal(self) -> str | None:
        """The reason why the letter cannot be sent again; None if it can."""
        if self.raw is None and not self.is_null:
            return "no record is kept in it"
        if self.size is not None and self.spilled is None:
            return f"only the beginning of its {self.size} bytes is kept"
        if self.form != ROW:
            return None
        if self.is_whole:
            return "a processor makes several rows of a record, and its other rows may have been written"
        return "what is kept is not the record as it was read"

    def record(self) -> bytes:
        """The record. Raises `ValueError` if `raw` cannot be decoded."""
        if self.encoding == "base64":
            return base64.b64decode(self.raw or "", validate=True)
        return (self.raw or "").encode("utf-8", "surrogatepass")


_VALUES = re.compile(
    r"""(?P<kept>\ is\ not\ (?:a\ time|of\ type\ [\w(,)]+):\ ).*  # the rest is a value, whatever is in it
    |'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"
    |'[^']*?…  # a value that was cut off
    |(?<=\s)\S*\d\S*""",
    re.DOTALL | re.VERBOSE,
)


def general_reason(reason: str) -> str:
    """The reason without values of the record, quoted text and words that hold digits: the same for many records.

    A number at the beginning stays, as it is the status of a response.
    """
    return _VALUES.sub(lambda value: f"{value['kept'] or ''}…", reason)


def letter_of(fields: Mapping[str, Any], letter_id: LetterId, at: float | None, redriven: str | None) -> Letter:
    """The letter that a line of a file or a document holds. Raises `ValueError` if it is not a letter."""
    try:
        origin = fields["origin"]
        return Letter(
            letter_id,
            str(origin["key"]),
            int(origin["item"]),
            str(fields.get("reason", "")),
            fields.get("raw"),
            fields.get("encoding"),
            fields.get("size"),
            fields.get("form"),
            at,
            redriven,
            fields.get("source"),
            fields.get("row"),
            fields.get("missing"),
            fields.get("spilled"),
        )
    except (KeyError, TypeError, AttributeError) as wrong:
        raise ValueError(f"{letter_id.container} {letter_id.number} is not a dead letter: {wrong!r}") from wrong


class LetterBox(ABC):
    """The dead letters of one sink. All calls block, may be repeated, and raise `Unavailable`."""

    @abstractmethod
    def letters(self) -> Iterator[Letter]:
        """All letters, those of the same container consecutively and in order."""

    @abstractmethod
    def fetch(self, ids: Sequence[LetterId]) -> list[Letter]:
        """These letters, in this order. Raises `BatchError` if one of them does not exist."""

    def whole(self, letter: Letter) -> Letter:
        """The letter with all of its record in `raw`. Raises `BatchError` if what was spilled is gone or altered."""
        if letter.spilled is None:
            return letter
        data = self.read_spilled(letter)
        if data is None or hashlib.sha256(data).hexdigest() != letter.spilled["sha256"]:
            what = "is gone" if data is None else "was altered"
            raise BatchError(f"the record of the dead letter {letter.id.container}:{letter.id.number} {what}")
        fields = json.loads(data)
        kept = {name: fields.get(name) for name in ("raw", "encoding", "source")}
        return replace(letter, **kept, size=None, spilled=None)

    def read_spilled(self, letter: Letter) -> bytes | None:
        """The bytes that `spilled` of a letter names; None if they do not exist any more."""
        raise BatchError(f"{type(self).__name__} keeps no records beside its letters, and {letter.id} names one")

    @abstractmethod
    def mark(self, ids: Iterable[LetterId], run: str) -> None:
        """Record that this run has sent these letters again. Letters that do not exist any more are ignored."""


class CommittedLetters(LetterBox):
    """A letter box that finds the letters of a commit, so that copies of them can be sent.

    Calls block, as those of `LetterBox` do.
    """

    @abstractmethod
    def note_name(self, receipt: Any, commit: str) -> str | None:
        """A name for notes on the letters of this commit, the same if it is staged again; None if it has no letters."""

    @abstractmethod
    def of_receipt(self, receipt: Any) -> Iterator[Letter]:
        """The letters of a published receipt. Raises `BatchError` if they are gone."""

    @abstractmethod
    def note(self, topic: str, name: str, text: bytes) -> bytes | None:
        """Create the note of that name, which is kept for ever. Returns None, or the note that existed before."""


def read_back(box: LetterBox) -> Iterator[str]:
    """Read each letter with the whole of its record, and yield its partition.

    Raises `ValueError`, `TypeError` or `BatchError` if a letter cannot be read, and `Unavailable`.
    """
    for letter in box.letters():
        box.whole(letter).record()
        yield letter.key


class Rebuilder(Protocol):
    """Makes rows from the records that dead letters keep. Each source has its own."""

    @property
    def keeps(self) -> frozenset[str] | None:
        """The columns that a letter keeps if it is not whole; the others are null. None if it keeps all columns."""

    def fields(self) -> Any:
        """The source's data columns, as Spark's `StructType`. Called where there is a Spark session."""

    def refusal(self, letter: Letter) -> str | None:
        """Why no row can be made from this letter's record; None if it can be tried."""

    def row(self, letter: Letter) -> Any:
        """The record as an Arrow record batch of one row. Raises `ValueError` if it is not a record of this source."""


# --- letters that are being written --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A record as the source has it."""

    source: Mapping[str, Any]
    """Where the source has it, and what belongs to it besides its bytes: JSON."""
    value: bytes | None = None
    """Its bytes; None if the record is null."""
    form: str | None = None
    """`COLUMNS` if `value` is JSON of the source's columns."""
    missing: str | None = None
    """Why the source does not have all of it; without a `value` the letter keeps what the pipeline had."""


class RecordReader(Protocol):
    """Reads single records of a batch from the source a second time, in the task that keeps them. Picklable."""

    def records(self, batch: Any, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:
        """The record of each fault of this `StagedBatch`, in the same order; items ascend, and may be repeated.

        A record that does not exist any more is `missing`. Raises `Unavailable`.
        """


@dataclass(frozen=True, slots=True)
class NewLetter:
    """A letter on its way to a letter box."""

    item: int
    fault: Fault
    """The fault, with the record as the source has it, or its beginning."""
    more: Mapping[str, Any]
    """Further fields of the letter."""
    spill: bytes | None = None
    """The whole record, if only its beginning is in the letter: `LetterBox.whole` reads it."""

    def spilled(self, where: Mapping[str, Any]) -> dict[str, Any]:
        """The letter's additional fields if its record was spilled; `where` names the object that holds it."""
        data = self.spill or b""
        return {**self.more, "spilled": {**where, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}}


def new_letters(batch: Any, faults: Sequence[tuple[int, Fault]]) -> Iterator[NewLetter]:
    """The letters of these faults of a `StagedBatch`, in the order of their items, each with the whole record.

    Raises `Unavailable` if the records cannot be read from the source now.
    """
    ordered = sorted(faults, key=lambda found: (found[0], found[1].encode()))
    if batch.reader is None:
        yield from (NewLetter(item, fault, {}) for item, fault in ordered)
        return
    for (item, fault), record in zip(ordered, batch.reader.records(batch, ordered), strict=True):
        yield _new_letter(item, fault, record, several_rows=batch.several_rows)


MAX_SPILLED_FIELD = 1024
"""Bytes of a field of `source` that stays in the letter of a record that is spilled."""


def _new_letter(item: int, fault: Fault, record: SourceRecord, *, several_rows: bool) -> NewLetter:
    more: dict[str, Any] = {} if record.missing is None else {"missing": record.missing}
    if fault.kind == DAMAGE or (record.missing is not None and record.value is None):
        return NewLetter(item, fault, {**more, "source": dict(record.source)})
    if fault.form == ROW and not fault.base64:
        more["row"] = fault.raw
    source = {**record.source, "value": None} if record.value is None else dict(record.source)
    form = ROW if fault.form == ROW and several_rows and not fault.whole else record.form
    kept = Fault(RECORD, fault.reason, form=form)
    if record.value is not None:
        kept = replace(record_fault(fault.reason, record.value), form=form)
    if kept.size is None and len(json.dumps(source)) <= MAX_RAW_BYTES:
        return NewLetter(item, kept, {**more, "source": source})
    spill = {**encoded_bytes("raw", record.value), "source": source}
    small = {name: value for name, value in source.items() if len(json.dumps(value)) <= MAX_SPILLED_FIELD}
    size = len(record.value or b"")
    return NewLetter(
        item,
        replace(kept, size=size) if kept.raw is not None else kept,
        {**more, "source": small},
        json.dumps(spill, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n",
    )


def encoded_bytes(name: str, data: bytes | None, encoding: str = "encoding") -> dict[str, Any]:
    """Bytes as fields of JSON: text, or base64 with its encoding if they are not UTF-8. None gives no fields."""
    if data is None:
        return {}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), encoding: "base64"}


def decoded_bytes(fields: Mapping[str, Any], name: str, encoding: str = "encoding") -> bytes | None:
    """The bytes that `encoded_bytes` was given. Raises `ValueError`."""
    text = fields.get(name)
    if text is None:
        return None
    return base64.b64decode(text, validate=True) if fields.get(encoding) == "base64" else str(text).encode()
