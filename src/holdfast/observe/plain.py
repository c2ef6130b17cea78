"""Values of events and rows as plain JSON, as printable text, and times in words. Secrets stay hidden in all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from holdfast.config.secrets import Resolved


def plain(value: Any) -> Any:
    """The value as JSON can carry it. A secret is hidden, a reference is shown as it is written in the file."""
    if isinstance(value, Resolved):
        return value.written
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(plain(name)): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    return str(value)


def printable(text: str) -> str:
    """The text on one line, with everything that a terminal would act on shown as an escape."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def worded(value: Any) -> str:
    """The value as a word of a sentence: text as it is, in quotes where its end would not be clear."""
    simple = plain(value)
    if not isinstance(simple, str):
        return printable(json.dumps(simple, ensure_ascii=False))
    text = printable(simple)
    clear = text and not any(one in text for one in ' ,"')
    return text if clear else '"' + text.replace('"', '\\"') + '"'


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as `2026-01-31T12:00:00.000Z`; a time that no calendar has stays a number."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(seconds)
