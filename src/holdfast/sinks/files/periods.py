"""The period of time that an output folder covers, or at least when it begins. Pure and picklable.

An output folder has a period if some of its names, one after the other, match a template such as `dt=%Y-%m-%d/hr=%H`.
There may be other names before and after them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from zoneinfo import ZoneInfo

from holdfast.finalize.rules import Period

USUAL = (
    "dt=%Y-%m-%d/hr=%H/min=%M",
    "dt=%Y-%m-%d/hr=%H",
    "dt=%Y-%m-%d",
    "dt=%Y-%m",
    "dt=%Y",
    "%Y-%m-%d/%H/%M",
    "%Y-%m-%d/%H",
    "%Y-%m-%d",
    "%Y-%m",
    "%Y",
)
"""Templates of the times that the processor `parse` writes, the longest first."""
_PARTS = {
    "Y": r"(?P<Y>\d{4})",
    "m": r"(?P<m>\d{2})",
    "d": r"(?P<d>\d{2})",
    "j": r"(?P<j>\d{3})",
    "H": r"(?P<H>\d{2})",
    "M": r"(?P<M>\d{2})",
}
_YEAR_OF_WEEKS = {"G": r"(?P<G>\d{4})"}
_COARSER = {"Y": "", "m": "Y", "d": "Ym", "j": "Y", "H": "", "M": "H"}
_DIRECTIVE = re.compile(r"%(.)")
_REMEMBERED = 10_000
_WEEK = 7 * 86400.0


@dataclass(frozen=True)
class Periods:
    """The periods of output folders, by templates that `check_template` accepts."""

    templates: tuple[str, ...] = USUAL
    zone: str = "UTC"

    def of(self, output_folder: str) -> Period | None:
        """Begin and end; None if the output folder has no period. Results are cached."""
        return _period(self, output_folder)

    @cached_property
    def expressions(self) -> list[re.Pattern[str]]:
        """A regular expression for each template, which matches whole output folders."""
        return [re.compile(f"(?:.*/)?{_expression(text)}(?:/.*)?", re.ASCII | re.DOTALL) for text in self.templates]


@lru_cache(maxsize=_REMEMBERED)
def _period(periods: Periods, output_folder: str) -> Period | None:
    for expression in periods.expressions:
        match = expression.fullmatch(output_folder)
        if match is not None:
            try:
                return _between(*_span(match.groupdict()), ZoneInfo(periods.zone))
            except (ValueError, OverflowError):
                continue  # the digits are not a date
    return None


@dataclass(frozen=True)
class FolderTimes:
    """The beginnings of output folders, by patterns of strftime with a year (%Y or %G), each with its time zone."""

    patterns: tuple[tuple[str, str], ...] = ()

    def begin(self, output_folder: str) -> float | None:
        """A time before which the folder does not begin; None if its names have no time. Results are cached.

        The first pattern that matches counts, and of several names that match the one with the earliest time.
        """
        return _begin(self, output_folder)

    @cached_property
    def expressions(self) -> list[tuple[int, re.Pattern[str], str]]:
        """For each pattern the number of its names, a regular expression that matches them, and the time zone."""
        with_year = [(text, zone) for text, zone in self.patterns if {"Y", "G"} & set(_DIRECTIVE.findall(text))]
        return [(text.count("/") + 1, re.compile(_expression(text), re.ASCII), zone) for text, zone in with_year]


@lru_cache(maxsize=_REMEMBERED)
def _begin(times: FolderTimes, output_folder: str) -> float | None:
    names = output_folder.split("/")
    for count, expression, zone in times.expressions:
        windows = ["/".join(names[at : at + count]) for at in range(len(names) - count + 1)]
        found = [time for window in windows if (time := _begin_of(expression.fullmatch(window), zone)) is not None]
        if found:
            return min(found)
    return None


def _begin_of(match: re.Match[str] | None, zone: str) -> float | None:
    if match is None:
        return None
    parts = match.groupdict()
    try:
        if "G" in parts:
            # The first week of a year may begin in the year before.
            return _between(*_span({"Y": parts["G"]}), ZoneInfo(zone))[0] - _WEEK
        return _between(*_span(parts), ZoneInfo(zone))[0]
    except (ValueError, OverflowError):
        return None  # the digits are not a date


def check_template(text: str) -> None:
    """Raise `ValueError` for a template that does not define a period."""
    used = _DIRECTIVE.findall(text)
    if unknown := [directive for directive in used if directive not in _PARTS]:
        raise ValueError(f"has the unknown directive %{unknown[0]}; use {', '.join(f'%{name}' for name in _PARTS)}")
    if text.count("%") != len(used) or not all(text.split("/")):
        raise ValueError("must be names with '/' between them, as in dt=%Y-%m-%d/hr=%H")
    if "Y" not in used or len(set(used)) < len(used):
        raise ValueError("must have %Y, and no directive twice")
    for directive in used:
        if any(coarser not in used for coarser in _COARSER[directive]):
            raise ValueError(f"has %{directive} without the larger unit that it is part of")
    if "H" in used and not {"d", "j"} & set(used):
        raise ValueError("has %H without a day")


def _expression(template: str) -> str:
    pieces = _DIRECTIVE.split(template)
    # Every second piece is a directive.
    return "".join(
        _part(piece, pieces[:number]) if number % 2 else re.escape(piece) for number, piece in enumerate(pieces)
    )


def _part(directive: str, before: Sequence[str]) -> str:
    if directive == "%":
        return "%"
    # The second of two is not compared with the first: `parse` has written the same into both.
    return "[^/]+" if directive in before[1::2] else (_PARTS | _YEAR_OF_WEEKS).get(directive, "[^/]+")


def _span(parts: Mapping[str, str]) -> tuple[datetime, datetime]:
    """Begin and end on the wall clock."""
    number = {name: int(digits) for name, digits in parts.items()}
    begin = datetime(  # noqa: DTZ001 - the caller adds the time zone
        number["Y"], number.get("m", 1), number.get("d", 1), number.get("H", 0), number.get("M", 0)
    )
    if "j" in number:
        begin += timedelta(days=number["j"] - 1)
    if "M" in number:
        return begin, begin + timedelta(minutes=1)
    if "H" in number:
        return begin, begin + timedelta(hours=1)
    if "d" in number or "j" in number:
        return begin, begin + timedelta(days=1)
    if "m" in number:
        return begin, (begin + timedelta(days=31)).replace(day=1)
    return begin, begin.replace(year=begin.year + 1)


def _between(begin: datetime, end: datetime, zone: ZoneInfo) -> Period:
    # An hour that occurs twice, when clocks are set back, has a single name: from the first begin to the second end.
    begins = [begin.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1)]
    ends = [end.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1)]
    return min(begins), max(ends)
