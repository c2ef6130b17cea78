"""Texts that are made to take long, of any length, and the processors that they are made for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from holdfast.flow.processor import Processor
from holdfast.registry import Registry

SCHEMA = "_batch STRING, _item BIGINT, _fault STRING, value STRING"
APACHE = '1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] "GET /x HTTP/1.0" 200 23 "-" '
KIB = 1024


def processor(name: str, **settings: Any) -> Processor:
    plugin = Registry.installed().get("processors", name)
    made: Processor = plugin.build(plugin.config(**settings))
    return made


def filled(piece: str, *, before: str = "", behind: str = "") -> Callable[[int], str]:
    """As many pieces as make a text of the length that is given, between two other texts."""
    return lambda size: before + piece * ((size - len(before) - len(behind)) // len(piece)) + behind


def _pairs(size: int) -> str:
    return "&".join(f"{number:06x}={number % 7}" for number in range(size // 9))


APACHE_LOG = ("grok", {"match": {"value": "%{COMBINEDAPACHELOG}"}, "max_line_bytes": "2MiB"})
TO_MAP = ("key_value", {"destination": "map"})
TO_COLUMNS = ("key_value", {"include_keys": ["a", "b"]})
FROM_JSON = ("parse_json", {"schema": "a DECIMAL(38, 0), b STRING"})
JSON_MAP = ("parse_json", {"destination": "map"})
EPOCH = ("date", {"match": [{"key": "value", "patterns": ["epoch_milli", "epoch_nano", "iso8601", "yyyy-MM-dd"]}]})
HOSTILE: dict[str, tuple[tuple[str, dict[str, Any]], Callable[[int], str]]] = {
    "grok, a long agent": (APACHE_LOG, filled("A", before=f'{APACHE}"', behind='"')),
    "grok, a quote that is not closed": (APACHE_LOG, filled("A", before=f'{APACHE}"')),
    "grok, escaped quotes": (APACHE_LOG, filled(r"\"", before=f'{APACHE}"')),
    "grok, quotes": (APACHE_LOG, filled('"', before=APACHE)),
    "grok, one word": (APACHE_LOG, filled("A")),
    "grok, labels": (("grok", {"match": {"value": "%{COMBINEDAPACHELOG}"}}), filled("a.")),
    "grok, too long": (("grok", {"match": {"value": "%{UNIXPATH}$"}, "max_line_bytes": "1KiB"}), filled("/ ")),
    "key_value, many keys": (TO_MAP, _pairs),
    "key_value, one key": (TO_MAP, filled("a=1&")),
    "key_value, separators of pairs": (TO_MAP, filled("&")),
    "key_value, separators of values": (TO_MAP, filled("=")),
    "key_value, no separators": (TO_MAP, filled("a")),
    "key_value, columns of many keys": (TO_COLUMNS, _pairs),
    "key_value, columns of one key": (TO_COLUMNS, filled("a=1&")),
    "parse_json, a long number": (FROM_JSON, filled("9", before='{"a": ', behind="}")),
    "parse_json, a long text": (FROM_JSON, filled('\\"', before='{"b": "', behind='"}')),
    "parse_json, many keys": (JSON_MAP, lambda size: json.dumps({f"{number:06x}": 1 for number in range(size // 13)})),
    "parse_json, one key": (JSON_MAP, filled('"a":1,', before="{", behind='"a":1}')),
    "parse_json, nested": (JSON_MAP, filled('{"a":')),
    "parse_json, brackets": (FROM_JSON, filled("[")),
    "date, a long number": (EPOCH, filled("9")),
    "date, a long fraction": (EPOCH, filled("9", before="1.")),
    "date, zones": (EPOCH, filled(" a", before="2026-01-01")),
}
