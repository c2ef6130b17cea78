"""Values of events and rows as plain JSON, or as words of a sentence. Secrets stay hidden in both."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from holdfast.config.secrets import Resolved
from holdfast.observe.text import printable


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


def worded(value: Any) -> str:
    """The value as a word of a sentence: text as it is, in quotes where its end would not be clear."""
    simple = plain(value)
    if not isinstance(simple, str):
        return printable(json.dumps(simple, ensure_ascii=False))
    text = printable(simple)
    clear = text and not any(one in text for one in ' ,"')
    return text if clear else '"' + text.replace('"', '\\"') + '"'
