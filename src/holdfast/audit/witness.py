"""What manifests and plans say, read by the words of the documents. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.audit.place import OURS, is_key

DEAD_LETTERS = f"{OURS}deadletters/"


class Unreadable(Exception):
    """A manifest, plan or receipt does not have the form that the documents promise."""


@dataclass(frozen=True, slots=True)
class ToldFile:
    """A file as a manifest tells of it."""

    key: str
    rows: int
    size: int
    sha256: str
    first: int
    last: int

    @property
    def is_letters(self) -> bool:
        return self.key.startswith(DEAD_LETTERS)


@dataclass(frozen=True, slots=True)
class Share:
    """What a sink with routes was given of a commit, as it was counted before the sink staged it."""

    rows: int
    of: int

    @property
    def elsewhere(self) -> int:
        """Rows that by their routes were not for this sink."""
        return self.of - self.rows


@dataclass(frozen=True, slots=True)
class Told:
    """A commit as its manifest tells of it. `start` and `end` are positions, which only the source understands."""

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
    files: tuple[ToldFile, ...]
    gaps: tuple[tuple[int, int], ...]
    share: Share | None = None
    """None for a sink that is given every row."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a row says of a commit that is not published yet."""

    start: Any
    end: Any
    rows: int
    """Rows of the batch, also those that were not for this sink."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A range that is written again, and where its old files went."""

    id: str
    stream: str
    label: str
    start: int
    end: int
    done: bool
    moves: Mapping[str, str]
    generation: int = 0
    """Under which it is written again."""


def read_manifest(data: bytes) -> Told:
    """Raises `Unreadable`."""
    told = _document(data)
    try:
        return Told(
            commit_id=_text(told["commit_id"]),
            pipeline=_text(told["pipeline"]),
            key=_text(told["key"]),
            stream=_text(told["stream"]),
            label=_text(told["label"]),
            sequence=_number(told["sequence"]),
            generation=_number(told["generation"]),
            incarnation=_text(told["incarnation"]),
            start=told["start"],
            end=told["end"],
            files=tuple(map(_file, told["files"])),
            gaps=tuple((_number(first), _number(end)) for first, end in told.get("gaps", ())),
            share=_share(told),
        )
    except (KeyError, TypeError, ValueError) as wrong:
        raise Unreadable(f"{type(wrong).__name__}: {wrong}") from wrong


def read_receipt(told: Any) -> Receipt:
    """Raises `Unreadable`."""
    try:
        staged, share = sum(_number(file["rows"]) for file in told["files"]), _share(told)
        return Receipt(told["from"], told["to"], staged if share is None else share.of)
    except (KeyError, TypeError, ValueError) as wrong:
        raise Unreadable(f"{type(wrong).__name__}: {wrong}") from wrong


def read_plan(plan_id: str, data: bytes, *, done: bool) -> Plan:
    """`done`: all moves were carried out. Raises `Unreadable`."""
    told = _document(data)
    try:
        return Plan(
            id=plan_id,
            stream=_text(told["topic"]),
            label=str(told["partition"]),
            start=_number(told["from"]),
            end=_number(told["to"]),
            done=done,
            moves={_key(move["from"]): _key(move["to"]) for move in told["moves"]},
            generation=_number(told.get("generation", 0)),
        )
    except (KeyError, TypeError, ValueError) as wrong:
        raise Unreadable(f"{type(wrong).__name__}: {wrong}") from wrong


def offset_of(position: Any) -> int | None:
    """The number in a position `{"offset": N}`; None for a position of another kind."""
    offset = position.get("offset") if isinstance(position, dict) else None
    return offset if isinstance(offset, int) and not isinstance(offset, bool) else None


def _document(data: bytes) -> dict[str, Any]:
    try:
        told = json.loads(data)
    except ValueError as wrong:
        raise Unreadable(f"it is no JSON: {wrong}") from wrong
    if not isinstance(told, dict):
        raise Unreadable("it is no JSON object")
    return told


def _share(told: Any) -> Share | None:
    routed = told.get("routed")
    return None if routed is None else Share(_number(routed["rows"]), _number(routed["of"]))


def _file(told: Any) -> ToldFile:
    return ToldFile(
        key=_key(told["key"]),
        rows=_number(told["rows"]),
        size=_number(told["size"]),
        sha256=_text(told["sha256"]),
        first=_number(told["first"]),
        last=_number(told["last"]),
    )


def _key(value: Any) -> str:
    if not is_key(value):
        raise ValueError(f"{value!r} is no key")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no number")
    return value
