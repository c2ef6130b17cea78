"""Manifests, receipts and plans, decoded from their documented JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.audit.roots import OURS, is_key

DEAD_LETTERS = f"{OURS}deadletters/"
LETTER_RECORDS = f"{OURS}deadletter-records/"
"""Large records of dead letters: JSON lines that the letters name, and not rows of the commit."""


class Unreadable(Exception):
    """A manifest, plan or receipt does not have its documented form."""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A file as described in a manifest."""

    key: str
    rows: int
    size: int
    sha256: str
    first: int
    last: int

    @property
    def is_letters(self) -> bool:
        return self.key.startswith((DEAD_LETTERS, LETTER_RECORDS))

    @property
    def is_letter_records(self) -> bool:
        return self.key.startswith(LETTER_RECORDS)


@dataclass(frozen=True, slots=True)
class Share:
    """How many rows of a commit a sink with routes was given, counted before the sink staged them."""

    rows: int
    of: int

    @property
    def elsewhere(self) -> int:
        """Rows that were routed to other sinks only."""
        return self.of - self.rows


@dataclass(frozen=True, slots=True)
class Manifest:
    """A commit as described in its manifest. `start` and `end` are positions, which only the source understands."""

    commit_id: str
    pipeline: str
    key: str
    stream: str
    label: str
    sequence: int
    generation: int
    incarnation: str
    start: Any
    end: Any
    files: tuple[ManifestFile, ...]
    gaps: tuple[tuple[int, int], ...]
    share: Share | None = None
    """None for a sink that is given every row."""
    skipped: int = 0
    """Rows that the sink's format cannot hold, and that a setting leaves out."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A commit that is not published yet, as described in the row."""

    start: Any
    end: Any
    rows: int
    """Rows of the batch, including those routed to other sinks only."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A range that is written again, and where its old files were moved."""

    id: str
    stream: str
    label: str
    start: int
    end: int
    done: bool
    moves: Mapping[str, str]
    generation: int = 0
    """The generation that writes the range again."""


def read_manifest(data: bytes) -> Manifest:
    """Decode a manifest. Raises `Unreadable`."""
    document = _document(data)
    try:
        return Manifest(
            commit_id=_text(document["commit_id"]),
            pipeline=_text(document["pipeline"]),
            key=_text(document["key"]),
            stream=_text(document["stream"]),
            label=_text(document["label"]),
            sequence=_number(document["sequence"]),
            generation=_number(document["generation"]),
            incarnation=_text(document["incarnation"]),
            start=document["start"],
            end=document["end"],
            files=tuple(map(_file, document["files"])),
            gaps=tuple((_number(first), _number(end)) for first, end in document.get("gaps", ())),
            share=_share(document),
            skipped=_number(document.get("skipped", 0)),
        )
    except (KeyError, TypeError, ValueError) as wrong:
        raise Unreadable(f"{type(wrong).__name__}: {wrong}") from wrong


def read_receipt(receipt: Any) -> Receipt:
    """Decode a receipt. Raises `Unreadable`."""
    try:
        staged, share = sum(_number(file["rows"]) for file in receipt["files"]), _share(receipt)
        rows = staged + _number(receipt.get("skipped", 0)) if share is None else share.of
        return Receipt(receipt["from"], receipt["to"], rows)
    except (KeyError, TypeError, ValueError) as wrong:
        raise Unreadable(f"{type(wrong).__name__}: {wrong}") from wrong


def read_plan(plan_id: str, data: bytes, *, done: bool) -> Plan:
    """Decode a plan. `done`: all files were moved. Raises `Unreadable`."""
    document = _document(data)
    try:
        return Plan(
            id=plan_id,
            stream=_text(document["topic"]),
            label=str(document["partition"]),
            start=_number(document["from"]),
            end=_number(document["to"]),
            done=done,
            moves={_key(move["from"]): _key(move["to"]) for move in document["moves"]},
            generation=_number(document.get("generation", 0)),
        )
    except (KeyError, TypeError, ValueError) as wrong:
        raise Unreadable(f"{type(wrong).__name__}: {wrong}") from wrong


def offset_of(position: Any) -> int | None:
    """Return the number in a position `{"offset": N}`; None for other positions."""
    offset = position.get("offset") if isinstance(position, dict) else None
    return offset if isinstance(offset, int) and not isinstance(offset, bool) else None


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as wrong:
        raise Unreadable(f"it is not JSON: {wrong}") from wrong
    if not isinstance(document, dict):
        raise Unreadable("it is not a JSON object")
    return document


def _share(document: Any) -> Share | None:
    routed = document.get("routed")
    return None if routed is None else Share(_number(routed["rows"]), _number(routed["of"]))


def _file(file: Any) -> ManifestFile:
    return ManifestFile(
        key=_key(file["key"]),
        rows=_number(file["rows"]),
        size=_number(file["size"]),
        sha256=_text(file["sha256"]),
        first=_number(file["first"]),
        last=_number(file["last"]),
    )


def _key(value: Any) -> str:
    if not is_key(value):
        raise ValueError(f"{value!r} is not a key")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value
