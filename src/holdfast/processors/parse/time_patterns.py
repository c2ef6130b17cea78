"""Patterns of times with strftime's directives, for reading and writing. Names of months are English."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import cached_property

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
INVALID = "__invalid__"
_DIRECTIVE = re.compile(r"%(.)", re.DOTALL)

_READ = {
    "Y": r"(?P<Y>\d{4})",
    "m": r"(?P<m>\d{1,2})",
    "b": rf"(?P<b>{'|'.join(MONTHS)})",
    "d": r"(?P<d>\d{1,2})",
    "j": r"(?P<j>\d{1,3})",
    "H": r"(?P<H>\d{1,2})",
    "M": r"(?P<M>\d{1,2})",
    "S": r"(?P<S>\d{1,2})",
    "f": r"(?P<f>\d{1,9})",
    "z": r"(?P<z>Z|[+-]\d{2}:?\d{2})",
}
_WRITE: dict[str, Callable[[datetime], str]] = {
    "Y": lambda moment: f"{moment.year:04}",
    "y": lambda moment: f"{moment.year % 100:02}",
    "m": lambda moment: f"{moment.month:02}",
    "b": lambda moment: MONTHS[moment.month - 1],
    "d": lambda moment: f"{moment.day:02}",
    "j": lambda moment: f"{moment.timetuple().tm_yday:03}",
    "G": lambda moment: f"{moment.isocalendar().year:04}",
    "V": lambda moment: f"{moment.isocalendar().week:02}",
    "H": lambda moment: f"{moment.hour:02}",
    "M": lambda moment: f"{moment.minute:02}",
    "S": lambda moment: f"{moment.second:02}",
}
_SECONDS = {"S": 1, "M": 60, "H": 3600}
DAY = 86400


@dataclass(frozen=True)
class TimePattern:
    """How a time is written in messages, as in `%d/%b/%Y:%H:%M:%S %z`. Raises `ValueError` if it has no day."""

    text: str

    def __post_init__(self) -> None:
        used = _directives(self.text, _READ)
        if "Y" not in used or not (("d" in used and used & {"m", "b"}) or "j" in used):
            raise ValueError("must have %Y, and %m (or %b) with %d, or %j")
        if len(used) < len([directive for directive in _DIRECTIVE.findall(self.text) if directive != "%"]):
            raise ValueError("must not have a directive twice")

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return re.compile(_filled(self.text, _READ.__getitem__, re.escape), re.ASCII)

    def moment(self, text: str) -> datetime:
        """The time, with a time zone if the text has one. Raises `ValueError`."""
        match = self._expression.fullmatch(text)
        if match is None:
            raise ValueError(f"the time {text[:60]!r} does not match {self.text}")
        parts = match.groupdict()
        month = MONTHS.index(parts["b"]) + 1 if parts.get("b") else int(parts.get("m") or 1)
        try:
            day, hour, minute, second = (int(parts.get(directive) or 0) for directive in "dHMS")
            # Without a time zone if the text has none.
            moment = datetime(int(parts["Y"]), month, day if "d" in parts else 1, hour, minute, second)  # noqa: DTZ001
            if parts.get("j"):
                moment = _of_day(moment, int(parts["j"]))
        except ValueError as wrong:
            raise ValueError(f"the time {text[:60]!r} is not valid: {wrong}") from None
        return moment.replace(microsecond=int((parts.get("f") or "0").ljust(6, "0")[:6]), tzinfo=_zone(parts.get("z")))


@dataclass(frozen=True)
class NamePattern:
    """How partition names are made from a time, as in `dt=%Y-%m-%d/hr=%H`. Raises `ValueError` for other text."""

    text: str

    def __post_init__(self) -> None:
        if not _directives(self.text, _WRITE):
            raise ValueError("must have at least one of " + ", ".join(f"%{directive}" for directive in _WRITE))
        if not all(self.text.split("/")):
            raise ValueError("must have a name before and after every '/'")

    @property
    def seconds(self) -> int:
        """The least number of seconds for which names stay the same, in UTC."""
        return min(_SECONDS.get(directive, DAY) for directive in _directives(self.text, _WRITE))

    def names(self, moment: datetime) -> str:
        """The names at that moment, joined by `/`."""
        return _filled(self.text, lambda directive: _WRITE[directive](moment), str)

    def invalid(self) -> str:
        """The names for a message without a time: as many as for a time, and different from those of any time."""
        return "/".join(map(_invalid, self.text.split("/")))


def _invalid(segment: str) -> str:
    if not _DIRECTIVE.search(segment):
        return segment
    key, equals, _ = segment.partition("=")
    return f"{key}={INVALID}" if equals and "%" not in key else INVALID


def _of_day(moment: datetime, day: int) -> datetime:
    found = moment.replace(month=1, day=1) + timedelta(days=day - 1)
    if found.year != moment.year:
        raise ValueError(f"the year has no day {day}")
    return found


def _zone(text: str | None) -> timezone | None:
    if text is None:
        return None
    if text == "Z":
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    if minutes >= 24 * 60:
        raise ValueError(f"there is no time zone {text}")
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _directives(text: str, supported: Mapping[str, object]) -> set[str]:
    used = set(_DIRECTIVE.findall(text)) - {"%"}
    if text.replace("%%", "").endswith("%"):
        raise ValueError("ends with a single '%'; write %% for a percent sign")
    if unknown := sorted(used - set(supported)):
        raise ValueError(
            f"has the unknown directive %{unknown[0]}; use {', '.join(f'%{name}' for name in supported)} or %%"
        )
    return used


def _filled(text: str, fill: Callable[[str], str], literal: Callable[[str], str]) -> str:
    pieces = _DIRECTIVE.split(text)
    # Every second piece is a directive.
    return "".join(
        (literal("%") if piece == "%" else fill(piece)) if number % 2 else literal(piece)
        for number, piece in enumerate(pieces)
    )
