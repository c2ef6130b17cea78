"""Values of events and rows as plain JSON, or as words in a log line. Secrets stay hidden in both."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from holdfast.config.secrets import Resolved
from holdfast.observe.text import printable


def plain(value: Any) -> Any:
    """Return the value as plain JSON. Secrets are hidden; a reference is shown as written in the file."""
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


def worded(value: Any) -> str:
    """Return the value as a word of a log line: text as it is, in quotes if its end would be unclear."""
    simple = plain(value)
    if not isinstance(simple, str):
        return printable(json.dumps(simple, ensure_ascii=False))
    text = printable(simple)
    clear = text and not any(character in text for character in ' ,"')
    return text if clear else '"' + text.replace('"', '\\"') + '"'
