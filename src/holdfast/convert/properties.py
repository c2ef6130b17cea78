"""Java's properties, with `include` as Secor has it. Hand-written: libraries for such files know no `include`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import UsageError

_ENTRY = re.compile(r"\s*((?:\\.|[^\s=:\\])+)(?:\s*[=:]\s*|\s+|$)(.*)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_MOST_FILES = 20
# Names only classes of Secor, for a version of Kafka; it is in another folder than the others.
_CLASSES = "kafka.properties"


def read_properties(path: Path, read: Callable[[str], str], note: Callable[[str, str], None]) -> dict[str, str]:
    """Return the properties of a file and of those that it includes; the including file decides.

    `read` returns the text of a file or raises `UsageError`, which is a note if the file is included.
    """
    found: dict[str, str] = {}
    open_files, seen = [path], set[Path]()
    while open_files and len(seen) < _MOST_FILES:
        file = open_files.pop(0)
        if file in seen:
            continue
        seen.add(file)
        try:
            text = read(str(file))
        except UsageError:
            if file == path:
                raise
            if file.name != _CLASSES:
                note("include", f"{file.name} was not found beside the file; its properties are not converted")
            continue
        given = parse_properties(text)
        open_files += [file.parent / name.strip() for name in given.pop("include", "").split(",") if name.strip()]
        found = given | found
    return found


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties of a text by name. Comments begin with # or !, a backslash continues a line."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for first in lines:
        line = first.lstrip()
        if not line or line[0] in "#!":
            continue
        while re.search(r"(?<!\\)(\\\\)*\\$", line):
            line = line[:-1] + next(lines, "").lstrip()
        if entry := _ENTRY.fullmatch(line):
            found[_unescaped(entry[1])] = _unescaped(entry[2].strip())
    return found


def _unescaped(text: str) -> str:
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text)
