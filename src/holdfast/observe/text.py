"""Text that is safe to print, and times as text."""

from __future__ import annotations

from datetime import UTC, datetime


def printable(text: str, *, keep: str = "") -> str:
    """Return the text with control characters shown as escapes, except for the characters to keep."""
    return "".join(
        character if character.isprintable() or character in keep else character.encode("unicode_escape").decode()
        for character in text
    )


def timestamp(seconds: float) -> str:
    """Return seconds since 1970 as `2026-01-31T12:00:00.000Z`; a time outside the calendar stays a number."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(seconds)
