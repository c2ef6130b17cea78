"""Counts the dead letters of a pipeline by sink and reason, for commands and REST."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from holdfast.assemble import build_pipeline
from holdfast.config.models import Settings
from holdfast.errors import UsageError
from holdfast.flow.letter import Letter, LetterBox, general_reason
from holdfast.registry import Registry
from holdfast.runs.redrive import box_of

LONGEST_REASON = 200
COUNTS = ("waiting", "sent_again", "cannot_be", "first", "last")


def letter_rows(
    settings: Settings, pipeline: str, sink: str | None = None, *, by_partition: bool = False
) -> list[dict[str, Any]]:
    """Return the number of dead letters by sink and reason. Reads all of them; does not use the store."""
    groups: dict[tuple[str, ...], _Group] = {}
    for name, _, letter in letters_of(settings, pipeline, sink):
        key = (name, *([letter.key] if by_partition else []), general_reason(letter.reason)[:LONGEST_REASON])
        groups.setdefault(key, _Group()).count(letter)
    names = ("sink", *(["partition"] if by_partition else []), "reason", *COUNTS)
    return [dict(zip(names, (*key, *group.values()), strict=True)) for key, group in sorted(groups.items())]


def letters_of(settings: Settings, pipeline: str, sink: str | None) -> Iterator[tuple[str, LetterBox, Letter]]:
    """Yield letters with the names and letter boxes of their sinks. Raises `UsageError` if there is no such sink."""
    built = build_pipeline(settings.pipelines[pipeline], Registry.installed())
    try:
        for name in sink_names(settings, pipeline, sink):
            box = box_of(built, settings.identifier(pipeline), name)
            for letter in box.letters():
                yield name, box, letter
    finally:
        built.source.close()


def sink_names(settings: Settings, pipeline: str, wanted: str | None) -> list[str]:
    """Return the sinks of a pipeline, or the one that is wanted. Raises `UsageError` if there is no such sink."""
    names = [named.name for named in settings.pipelines[pipeline].sinks]
    if wanted is not None and wanted not in names:
        raise UsageError(f"pipeline {pipeline!r} has no sink {wanted!r}; it has {', '.join(names)}")
    return names if wanted is None else [wanted]


def letter_time(seconds: float | None) -> str | None:
    """Return a time as text in UTC; None if there is none."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


class _Group:
    """Counts letters with the same reason."""

    def __init__(self) -> None:
        self._states: Counter[str] = Counter()
        self._times: list[float] = []

    def count(self, letter: Letter) -> None:
        state = "sent" if letter.redriven is not None else "waiting" if letter.refusal is None else "cannot"
        self._states[state] += 1
        if letter.at is not None:
            self._times = [min([letter.at, *self._times]), max([letter.at, *self._times])]

    def values(self) -> tuple[Any, ...]:
        first, last = self._times or (None, None)
        counts = (self._states["waiting"], self._states["sent"], self._states["cannot"])
        return (*counts, letter_time(first), letter_time(last))
