"""Dead letters that wait in a sink: to be looked at, and to be sent through the pipeline again.

A letter is never deleted. One that was sent again is marked with the run that did it; if it failed once more, there is
another letter.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.flow.fault import ROW


@dataclass(frozen=True, slots=True, order=True)
class LetterId:
    """Which letter of a sink: where it is kept, and its number there. What is at an id never changes."""

    place: str
    number: int


@dataclass(frozen=True, slots=True)
class Letter:
    """One record that could not be handled."""

    id: LetterId
    key: str
    """The partition that it came from."""
    item: int
    reason: str
    raw: str | None = None
    encoding: str | None = None
    size: int | None = None
    """Bytes of the whole record, when `raw` is only its beginning."""
    form: str | None = None
    at: float | None = None
    """When it became visible, if that is known: seconds since 1970."""
    redriven: str | None = None
    """The run that has sent it again."""

    @property
    def refusal(self) -> str | None:
        """Why it cannot be sent again; None if it can."""
        if self.raw is None:
            return "no record is kept in it"
        if self.size is not None:
            return f"only the beginning of its {self.size} bytes is kept"
        return "what is kept is not the record as it was read" if self.form == ROW else None

    def record(self) -> bytes:
        """The record. Raises `ValueError` if it is not kept as it should be."""
        if self.encoding == "base64":
            return base64.b64decode(self.raw or "", validate=True)
        return (self.raw or "").encode("utf-8", "surrogatepass")


def letter_of(told: Mapping[str, Any], number: LetterId, at: float | None, redriven: str | None) -> Letter:
    """The letter that a line of a file or a document tells of. Raises `ValueError` if it is none."""
    try:
        origin = told["origin"]
        return Letter(
            number,
            str(origin["key"]),
            int(origin["item"]),
            str(told.get("reason", "")),
            told.get("raw"),
            told.get("encoding"),
            told.get("size"),
            told.get("form"),
            at,
            redriven,
        )
    except (KeyError, TypeError, AttributeError) as wrong:
        raise ValueError(f"{number.place} {number.number} is no dead letter: {wrong!r}") from wrong


class LetterBox(ABC):
    """The dead letters of one sink. All calls block, may be repeated, and raise `Unavailable`."""

    @abstractmethod
    def letters(self) -> Iterator[Letter]:
        """All of them, those of one place together and in order."""

    @abstractmethod
    def fetch(self, ids: Sequence[LetterId]) -> list[Letter]:
        """These letters, in this order. Raises `BatchError` if one is not there."""

    @abstractmethod
    def mark(self, ids: Iterable[LetterId], run: str) -> None:
        """Note that this run has sent them again. A letter that is not there any more is passed over."""


class Rebuilder(Protocol):
    """How a source makes rows of the records that dead letters keep."""

    @property
    def keeps(self) -> frozenset[str] | None:
        """The columns that letters keep, the others being null; None if they keep all."""

    def fields(self) -> Any:
        """The source's data columns, as Spark's `StructType`. Called where there is a session."""

    def refusal(self, letter: Letter) -> str | None:
        """Why this letter's record cannot be made into a row; None if it can be tried."""

    def row(self, letter: Letter) -> Any:
        """One Arrow record batch with the data columns. Raises `ValueError` if it is no record of this source."""
