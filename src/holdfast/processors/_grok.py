"""Compiles grok, such as `%{IP:client} %{NUMBER:bytes:int}`, to a regular expression and its groups. Pure.

Java recurses for each repetition of a group whose content varies, `(?:…)*`, and a long line overflows its stack. The
predefined patterns repeat single characters, or groups possessively (`*+`), or groups a limited number of times.

Java numbers groups by their opening brackets. Groups have no names: a field's name may have characters that the name of
a group may not, and the same field may be in two branches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.registry import did_you_mean

NUMBERS = {
    "INT": r"[+-]?[0-9]+",
    "BASE10NUM": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)",
    "NUMBER": r"%{BASE10NUM}",
    "BASE16NUM": r"[+-]?(?:0x)?[0-9A-Fa-f]+",
    "POSINT": r"\b[1-9][0-9]*\b",
    "NONNEGINT": r"\b[0-9]+\b",
}
WORDS = {
    "WORD": r"\b\w+\b",
    "NOTSPACE": r"\S+",
    "SPACE": r"\s*",
    "DATA": r".*?",
    "GREEDYDATA": r".*",
    "QUOTEDSTRING": (r"""(?:"[^\\"]*+(?:\\.[^\\"]*+)*+"|'[^\\']*+(?:\\.[^\\']*+)*+'|`[^\\`]*+(?:\\.[^\\`]*+)*+`)"""),
    "QS": r"%{QUOTEDSTRING}",
    "UUID": r"[A-Fa-f0-9]{8}-(?:[A-Fa-f0-9]{4}-){3}[A-Fa-f0-9]{12}",
    "USERNAME": r"[a-zA-Z0-9._-]+",
    "USER": r"%{USERNAME}",
    "EMAILADDRESS": r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~.-]++@%{HOSTNAME}",
    "LOGLEVEL": (
        r"(?i:alert|trace|debug|notice|info(?:rmation)?|warn(?:ing)?|err(?:or)?|crit(?:ical)?|fatal|severe"
        r"|emerg(?:ency)?)"
    ),
}
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = r"[0-9A-Fa-f]{1,4}"
NETWORK = {
    "MAC": r"(?:[A-Fa-f0-9]{2}[:-]){5}[A-Fa-f0-9]{2}",
    "IPV4": rf"(?<![0-9])(?:{_BYTE}\.){{3}}{_BYTE}(?![0-9])",
    "IPV6": (
        rf"(?:(?:{_HEX}:){{7}}{_HEX}|(?:{_HEX}:){{1,7}}:|(?:{_HEX}:){{1,6}}:{_HEX}|(?:{_HEX}:){{1,5}}(?::{_HEX}){{1,2}}"
        rf"|(?:{_HEX}:){{1,4}}(?::{_HEX}){{1,3}}|(?:{_HEX}:){{1,3}}(?::{_HEX}){{1,4}}"
        rf"|(?:{_HEX}:){{1,2}}(?::{_HEX}){{1,5}}|{_HEX}:(?::{_HEX}){{1,6}}|:(?:(?::{_HEX}){{1,7}}|:))(?:%[0-9A-Za-z]+)?"
    ),
    "IP": r"(?:%{IPV4}|%{IPV6})",
    # A name has at most 253 characters, and so at most 127 labels.
    "HOSTNAME": r"\b[0-9A-Za-z][0-9A-Za-z-]{0,62}(?:\.[0-9A-Za-z][0-9A-Za-z-]{0,62}){0,126}\.?(?![0-9A-Za-z-])",
    "IPORHOST": r"(?:%{IP}|%{HOSTNAME})",
    "HOSTPORT": r"%{IPORHOST}:%{POSINT}",
    "URIPROTO": r"[A-Za-z][A-Za-z0-9+.-]*",
    "URIHOST": r"%{IPORHOST}(?::%{POSINT})?",
    "URIPATH": r"/[A-Za-z0-9$.+!*'(){},~:;=@#%&_/\-]*",
    "URIPARAM": r"\?[A-Za-z0-9$.+!*'|(){},~@#%&/=:;_?\-\[\]<>]*",
    "URIPATHPARAM": r"%{URIPATH}(?:%{URIPARAM})?",
    "URI": r"%{URIPROTO}://(?:%{USER}(?::[^@]*)?@)?(?:%{URIHOST})?(?:%{URIPATHPARAM})?",
    "UNIXPATH": r"/[\w%!$@:.,+~/-]*",
    "PATH": r"(?:%{UNIXPATH}|(?:[A-Za-z]+:|\\)\\[^?*]*)",
}
TIMES = {
    "MONTH": (
        r"\b(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:tember)?"
        r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b"
    ),
    "MONTHNUM": r"(?:0?[1-9]|1[0-2])",
    "MONTHDAY": r"(?:0[1-9]|[12][0-9]|3[01]|[1-9])",
    "DAY": r"(?:Mon(?:day)?|Tue(?:sday)?|Wed(?:nesday)?|Thu(?:rsday)?|Fri(?:day)?|Sat(?:urday)?|Sun(?:day)?)",
    "YEAR": r"(?:\d\d){1,2}",
    "HOUR": r"(?:2[0123]|[01]?[0-9])",
    "MINUTE": r"[0-5][0-9]",
    "SECOND": r"(?:[0-5]?[0-9]|60)(?:[:.,][0-9]+)?",
    "TIME": r"(?<![0-9])%{HOUR}:%{MINUTE}(?::%{SECOND})(?![0-9])",
    "ISO8601_TIMEZONE": r"(?:Z|[+-]%{HOUR}(?::?%{MINUTE}))",
    "TIMESTAMP_ISO8601": r"%{YEAR}-%{MONTHNUM}-%{MONTHDAY}[T ]%{HOUR}:?%{MINUTE}(?::?%{SECOND})?%{ISO8601_TIMEZONE}?",
    "DATE_US": r"%{MONTHNUM}[/-]%{MONTHDAY}[/-]%{YEAR}",
    "DATE_EU": r"%{MONTHDAY}[./-]%{MONTHNUM}[./-]%{YEAR}",
    "HTTPDATE": r"%{MONTHDAY}/%{MONTH}/%{YEAR}:%{TIME} %{INT}",
    "SYSLOGTIMESTAMP": r"%{MONTH} +%{MONTHDAY} %{TIME}",
}
LINES = {
    "PROG": r"[\x21-\x5a\x5c\x5e-\x7e]+",
    "SYSLOGPROG": r"%{PROG:program}(?:\[%{POSINT:pid}\])?",
    "SYSLOGBASE": r"%{SYSLOGTIMESTAMP:timestamp} (?:%{IPORHOST:logsource} )?%{SYSLOGPROG}:",
    "HTTPDUSER": r"(?:%{EMAILADDRESS}|%{USER})",
    "COMMONAPACHELOG": (
        r"%{IPORHOST:clientip} %{HTTPDUSER:ident} %{HTTPDUSER:auth} \[%{HTTPDATE:timestamp}\] "
        r'"(?:%{WORD:verb} %{NOTSPACE:request}(?: HTTP/%{NUMBER:httpversion})?|%{DATA:rawrequest})" '
        r"%{NUMBER:response} (?:%{NUMBER:bytes}|-)"
    ),
    "COMBINEDAPACHELOG": r"%{COMMONAPACHELOG} %{QS:referrer} %{QS:agent}",
}
PATTERNS: dict[str, str] = NUMBERS | WORDS | NETWORK | TIMES | LINES

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
    """An invalid pattern."""


@dataclass
class Compiled:
    """A regular expression for Java, and for each field its type and its groups, of which one matches."""

    regex: str = ""
    fields: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


def compiled(pattern: str, definitions: Mapping[str, str] | None = None) -> Compiled:
    """Compile a pattern; `definitions` take precedence over the predefined patterns. Raises `GrokError`."""
    compiler = _Compiler({**PATTERNS, **(definitions or {})})
    return Compiled(compiler.expand(pattern, ()), compiler.fields)


class _Compiler:
    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = patterns
        self._groups = 0
        self.fields: dict[str, tuple[str, tuple[int, ...]]] = {}

    def expand(self, text: str, inside: tuple[str, ...]) -> str:
        """The text with names replaced, from left to right, as groups are numbered."""
        made, at, in_class = [], 0, False
        while at < len(text):
            if use := None if in_class else _USE.match(text, at):
                made.append(self._used(use, inside))
                at = use.end()
                continue
            length = 2 if text[at] == "\\" else 1
            if text[at] in "[]":
                in_class = text[at] == "["
            elif text[at] == "(" and not in_class:
                at += self._group(text, at, made)
                continue
            made.append(text[at : at + length])
            at += length
        return "".join(made)

    def _group(self, text: str, at: int, made: list[str]) -> int:
        """Count a group, and note a field `(?<name>…)`. Returns the number of characters consumed."""
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
