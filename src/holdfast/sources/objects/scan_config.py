"""Settings of a scan: which objects are listed, how often, and what happens to them when they have been read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import Duration, Options, PositiveCount
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.units import VALUE_ERROR
from holdfast.s3.access import split_root

MAX_TAGS = 10


class Selection:
    """Which paths or keys are read. Raises `ValueError` for a pattern that is not valid."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str] = ()) -> None:
        self._include = [_pattern(glob) for glob in include]
        self._exclude = [_pattern(glob) for glob in exclude]

    def __contains__(self, path: str) -> bool:
        if not any(pattern.fullmatch(path) for pattern in self._include):
            return False
        return not any(pattern.fullmatch(path) for pattern in self._exclude)


def can_match_below(glob: str, folder: str) -> bool:
    """Return whether the pattern may match a path below this folder."""
    names = folder.split("/")
    for name, part in zip(names, glob.split("/")[:-1], strict=False):
        if "**" in part:
            return True
        if not _pattern(part).fullmatch(name):
            return False
    return "**" in glob or glob.count("/") >= len(names)


def _pattern(glob: str) -> re.Pattern[str]:
    """The glob as a regular expression for whole paths: only `**/` matches across folders, any number of them."""
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|\[!?[^\]/]+\]|.", glob, re.DOTALL)
    try:
        return re.compile("".join(map(_translated, tokens)), re.DOTALL)
    except re.error as error:
        raise ValueError(f"{glob!r} is not a valid pattern: {error}") from error


def _translated(token: str) -> str:
    wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if token in wildcards:
        return wildcards[token]
    if token.startswith("[") and len(token) > 1:
        negated = token.startswith("[!")
        inner = re.escape(token[2:-1] if negated else token[1:-1]).replace(r"\-", "-")
        return f"(?!/)[{'^' if negated else ''}{inner}]"
    return re.escape(token)


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if not all(patterns):
        raise ValueError("a pattern is empty; write **/* for every file")
    Selection(patterns)
    return patterns


def _checked_bucket(name: str) -> str:
    if "://" in name:
        raise PydanticCustomError(VALUE_ERROR, "is an address; write the name of the bucket alone")
    try:
        split_root(f"s3://{name}")
    except ValueError:
        raise PydanticCustomError(VALUE_ERROR, "is not a valid bucket name") from None
    if "/" in name:
        raise PydanticCustomError(VALUE_ERROR, "contains a slash; put what follows it into include_prefix")
    return name


def _moment(value: Any) -> datetime:
    """A time in ISO 8601; a time without a zone is in UTC."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise PydanticCustomError(VALUE_ERROR, "is not a time; write 2026-01-31T00:00:00Z") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


Patterns = Annotated[tuple[str, ...], AfterValidator(_check_patterns)]
Bucket = Annotated[str, AfterValidator(_checked_bucket)]
NotEmpty = Annotated[str, Field(min_length=1)]
Interval = Annotated[Duration, Field(gt=0)]
Moment = Annotated[
    datetime, PlainValidator(_moment), WithJsonSchema({"type": "string", "examples": ["2026-01-31T00:00:00Z"]})
]


class Times(Options):
    """A window of modification times."""

    start_time: Moment | None = Field(
        None, description="Objects modified before this time are skipped; ISO 8601, in UTC unless it has a zone."
    )
    end_time: Moment | None = Field(None, description="Objects modified at this time or later are skipped.")
    range: Interval | None = Field(
        None,
        description="Length of the time window: from start_time on, or up to end_time, or without both up to the "
        "beginning of each scan.",
    )

    @model_validator(mode="after")
    def _window_is_valid(self) -> Self:
        start, end = self.start_time, self.end_time
        if start is not None and end is not None:
            if self.range is not None:
                raise PydanticCustomError(PLAIN_ERROR, "give only two of start_time, end_time and range")
            if start >= end:
                raise PydanticCustomError(PLAIN_ERROR, "end_time is not after start_time")
        return self

    @property
    def given(self) -> bool:
        return not (self.start_time is None and self.end_time is None and self.range is None)

    def window(self, now: float) -> tuple[float, float]:
        """The window as [start, end), in seconds since 1970. `now` is when the scan began."""
        start = None if self.start_time is None else self.start_time.timestamp()
        end = None if self.end_time is None else self.end_time.timestamp()
        if self.range is not None and start is not None:
            end = start + self.range
        elif self.range is not None:
            start = (now if end is None else end) - self.range
        return float("-inf") if start is None else start, float("inf") if end is None else end


class BucketSettings(Times):
    """A bucket, and the objects of it that are read."""

    bucket: Bucket = Field(description="Name of the bucket.")
    include_prefix: tuple[NotEmpty, ...] = Field(
        (), description="Prefixes of keys; only objects below them are listed."
    )
    exclude_suffix: tuple[NotEmpty, ...] = Field((), description="Endings of keys; such objects are skipped.")
    include: Patterns | None = Field(None, description="Objects to read, as patterns of the key, instead of `include`.")
    exclude: Patterns | None = Field(None, description="Objects to skip, as patterns of the key, instead of `exclude`.")


class Schedule(Options):
    """Repeated scans."""

    interval: Interval = Field(description="Time from the end of one scan to the next.")
    count: PositiveCount | None = Field(None, description="Number of scans; unlimited unless given.")


def _tags(tags: dict[str, str]) -> dict[str, str]:
    if not 1 <= len(tags) <= MAX_TAGS or not all(tags):
        raise PydanticCustomError(PLAIN_ERROR, f"an object can have 1 to {MAX_TAGS} tags, each with a name")
    return tags


class TagObject(Options):
    """Tags for objects that have been read."""

    tag: Annotated[dict[str, str], AfterValidator(_tags)] = Field(description="Tags to add to the existing ones.")


Scan = Literal["once", "follow"] | Schedule
AfterSuccess = Literal["keep", "delete"] | TagObject
