"""Dead letters that a sink keeps: people look at them and send them through the pipeline again.

A letter is never deleted. A letter that was sent again is marked with the run that did it; if the record fails again,
there is another letter.
"""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.flow.fault import ROW


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

    @property
    def refusal(self) -> str | None:
        """The reason why the letter cannot be sent again; None if it can."""
        if self.raw is None:
            return "no record is kept in it"
        if self.size is not None:
            return f"only the beginning of its {self.size} bytes is kept"
        return "what is kept is not the record as it was read" if self.form == ROW else None

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

    @abstractmethod
    def mark(self, ids: Iterable[LetterId], run: str) -> None:
        """Record that this run has sent them again. Letters that do not exist any more are ignored."""


class Rebuilder(Protocol):
    """Makes rows of the records that dead letters keep. Each source has its own."""

    @property
    def keeps(self) -> frozenset[str] | None:
        """The columns that letters keep, the others being null; None if they keep all."""

    def fields(self) -> Any:
        """The source's data columns, as Spark's `StructType`. Called where there is a session."""

    def refusal(self, letter: Letter) -> str | None:
        """Why no row can be made of this letter's record; None if it can be tried."""

    def row(self, letter: Letter) -> Any:
        """The record as an Arrow record batch of one row. Raises `ValueError` if it is not a record of this source."""
