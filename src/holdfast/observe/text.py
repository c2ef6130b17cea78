"""Text that is safe to print, and times in words."""

from __future__ import annotations

from datetime import UTC, datetime


def printable(text: str, *, keep: str = "") -> str:
    """The text with everything that a terminal would act on shown as an escape, but for the characters to keep."""
    return "".join(one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text)


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as `2026-01-31T12:00:00.000Z`; a time that no calendar has stays a number."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(seconds)
