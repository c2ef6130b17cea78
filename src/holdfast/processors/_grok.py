"""From grok to a regular expression: `%{IP:client} %{NUMBER:bytes:int}` with the groups that its fields are in. Pure.

Java numbers groups by their opening brackets. Names are not used: a field's name may have characters that a group's may
not, and the same field may stand in two branches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.processors._grok_patterns import PATTERNS
from holdfast.registry import did_you_mean

TYPES = {
    "string": "string",
    "int": "int",
    "integer": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
}
_USE = re.compile(r"%\{(?P<pattern>\w+)(?::(?P<field>[^:}]+))?(?::(?P<type>[^:}]+))?\}")
_NAMED = re.compile(r"\?<(?P<field>[A-Za-z_]\w*)>")
DEEPEST = 32


class GrokError(ValueError):
    """A pattern that is none."""


@dataclass
class Compiled:
    """A regular expression for Java, and for each field its type and the groups that it may be in."""

    regex: str = ""
    fields: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


def compiled(pattern: str, own: Mapping[str, str] | None = None) -> Compiled:
    """The pattern with all names replaced; `own` come before the usual ones. Raises `GrokError`."""
    compiler = _Compiler({**PATTERNS, **(own or {})})
    return Compiled(compiler.expand(pattern, ()), compiler.fields)


class _Compiler:
    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = patterns
        self._groups = 0
        self.fields: dict[str, tuple[str, tuple[int, ...]]] = {}

    def expand(self, text: str, inside: tuple[str, ...]) -> str:
        """The text with names replaced, from left to right: that is how groups are numbered."""
        made, at, in_class = [], 0, False
        while at < len(text):
            if use := None if in_class else _USE.match(text, at):
                made.append(self._used(use, inside))
                at = use.end()
                continue
            taken = 2 if text[at] == "\\" else 1
            if text[at] in "[]":
                in_class = text[at] == "["
            elif text[at] == "(" and not in_class:
                taken = self._group(text, at, made)
                at += taken
                continue
            made.append(text[at : at + taken])
            at += taken
        return "".join(made)

    def _group(self, text: str, at: int, made: list[str]) -> int:
        """Count a group, and take note of a field `(?<name>…)`. Answers how many characters were taken."""
        if named := _NAMED.match(text, at + 1):
            self._note(named["field"], "string")
            made.append("(")
            return named.end() - at
        if not text.startswith("(?", at):
            self._groups += 1
        made.append("(")
        return 1

    def _used(self, use: re.Match[str], inside: tuple[str, ...]) -> str:
        name = use["pattern"]
        if name not in self._patterns:
            raise GrokError(f"there is no pattern {name!r}{did_you_mean(name, self._patterns)}")
        if name in inside or len(inside) > DEEPEST:
            raise GrokError(f"the pattern {name!r} contains itself")
        if use["field"] is None:
            return f"(?:{self.expand(self._patterns[name], (*inside, name))})"
        kind = use["type"] or "string"
        if kind not in TYPES:
            raise GrokError(f"there is no type {kind!r}; there are {', '.join(TYPES)}")
        self._note(use["field"], TYPES[kind])
        return f"({self.expand(self._patterns[name], (*inside, name))})"

    def _note(self, name: str, kind: str) -> None:
        self._groups += 1
        before, groups = self.fields.get(name, (kind, ()))
        if before != kind:
            raise GrokError(f"the field {name!r} is both {before} and {kind}")
        self.fields[name] = (kind, (*groups, self._groups))
