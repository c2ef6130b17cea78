"""What to tell a person when Spark has failed a job: one line, not eighty of a Java trace."""

from __future__ import annotations

import re

MAX_ERROR = 500

_WORKER_TRACE = re.compile(r"Traceback \(most recent call last\):\n(?:.*\n)*?(?P<error>\S[^\n]*)(?:\n\s*\n|\n\tat |\Z)")
_LOST_TASK = re.compile(r"[Ll]ost task [^)]*\)[^:]*: (?P<error>[^\n]+)")
_JAVA_NAME = re.compile(r"^(?:[a-z][\w$]*\.)+(?P<name>[A-Z]\w*): ")
_GONE = (
    "SparkContext was shut down",
    "stopped SparkContext",
    "SparkContext has been shutdown",
    "Connection refused",
    "Answer from Java side is empty",
    "Error while sending or receiving",
)


def readable(error: BaseException) -> str:
    """The line that says what happened."""
    text = str(error)
    worker = _last(_WORKER_TRACE, text)
    if worker is not None:
        return worker[:MAX_ERROR]
    line = _last(_LOST_TASK, text) or next((line for line in text.splitlines() if line.strip()), "")
    line = _JAVA_NAME.sub("", line.strip())
    return (line or type(error).__name__)[:MAX_ERROR]


def session_is_gone(error: BaseException) -> bool:
    """Whether no job will ever run in this session again."""
    return isinstance(error, ConnectionError) or any(sign in str(error) for sign in _GONE)


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    found: str | None = None
    for match in pattern.finditer(text):
        found = match["error"].strip()
    return found
