"""From grok to a regular expression. Python's definitions understand all of the library, so that it is tried here."""

from __future__ import annotations

import random
import re
import string
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.processors._grok import PATTERNS, GrokError, compiled
from holdfast.processors.grok import GrokConfig


def fields(pattern: str, text: str, **definitions: str) -> dict[str, str | None] | None:
    """By field what was found; None if nothing matches."""
    made = compiled(pattern, definitions)
    match = re.search(made.regex, text)
    if match is None:
        return None
    return {
        name: next((match[group] for group in groups if match[group]), None)
        for name, (_, groups) in made.fields.items()
    }


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_compiles_and_has_no_groups_but_those_of_its_fields(name: str) -> None:
    made = compiled(f"%{{{name}}}")
    assert re.compile(made.regex).groups == sum(len(groups) for _, groups in made.fields.values())


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("INT", ["0", "-12", "+7"], ["", "1.5", "x"]),
        ("NUMBER", ["1", "-1.5", ".5", "2."], ["x", "."]),
        ("BASE16NUM", ["0xFF", "ff"], ["xyz"]),
        ("WORD", ["a_1"], ["a b", ""]),
        ("QUOTEDSTRING", ['"a \\" b"', "'x'"], ['"x', "x"]),
        ("UUID", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]),
        ("IPV4", ["1.2.3.4", "255.255.255.255"], ["256.1.1.1", "1.2.3"]),
        ("IPV6", ["::1", "2001:db8::8a2e:370:7334", "fe80::1%eth0", "1:2:3:4:5:6:7:8"], ["12345::", "1.2.3.4"]),
        ("IP", ["1.2.3.4", "::1"], ["host"]),
        ("MAC", ["00:1B:44:11:3A:B7"], ["00:1B"]),
        ("HOSTNAME", ["a", "www.example-1.org"], ["-a", "a b"]),
        ("IPORHOST", ["::1", "10.0.0.1", "db-1.local"], ["a b"]),
        ("HOSTPORT", ["db:5432"], ["db"]),
        ("EMAILADDRESS", ["a.b+c@example.org"], ["a.example.org"]),
        ("URI", ["https://me:pw@example.org:8080/a/b?c=d&e[]=1", "ftp://x"], ["example"]),
        ("PATH", ["/var/log/x.log", r"C:\dir\file"], ["x"]),
        ("MONTHDAY", ["1", "09", "31"], ["0", "32"]),
        ("TIME", ["23:59:59.5"], ["24:00:00", "1:2"]),
        ("TIMESTAMP_ISO8601", ["2026-01-31T23:59:59.123Z", "2026-01-31 23:59+0100"], ["2026-13-01T00:00"]),
        ("HTTPDATE", ["10/Oct/2000:13:55:36 -0700"], ["10/Oct/2000"]),
        ("SYSLOGTIMESTAMP", ["Oct  1 00:00:00"], ["Oct"]),
        ("LOGLEVEL", ["WARN", "error", "Information"], ["loud"]),
    ],
)
def test_the_usual_patterns_match_what_they_should(name: str, good: list[str], bad: list[str]) -> None:
    regex = re.compile(compiled(f"%{{{name}}}").regex)
    assert [text for text in good if not regex.fullmatch(text)] == []
    assert [text for text in bad if regex.fullmatch(text)] == []


def test_fields_are_found_with_their_types() -> None:
    made = compiled("%{IP:client} %{NUMBER:bytes:int} %{DATA}")
    assert {name: kind for name, (kind, _) in made.fields.items()} == {"client": "string", "bytes": "int"}
    assert fields("%{IP:client} %{NUMBER:bytes:int}", "from 1.2.3.4 17") == {"client": "1.2.3.4", "bytes": "17"}
    assert fields("%{IP:client}", "nobody") is None


def test_groups_before_a_field_are_counted_and_brackets_that_are_none_are_not() -> None:
    assert fields(r"(a)(?:b)\([(]%{WORD:x}", "ab((word") == {"x": "word"}
    assert fields(r"(?<first>a+)-%{OWN:then}", "aa-bc", OWN="(b)(c)") == {"first": "aa", "then": "bc"}


def test_a_field_may_stand_in_two_branches() -> None:
    pattern = "(?:id=%{INT:id}|no %{INT:id})"
    assert (fields(pattern, "id=5"), fields(pattern, "no 6")) == ({"id": "5"}, {"id": "6"})


def test_fields_of_patterns_within_patterns_are_found() -> None:
    found = fields("%{SYSLOGBASE} %{GREEDYDATA:message}", "Oct  1 00:00:00 host app[12]: it works")
    assert found == {
        "timestamp": "Oct  1 00:00:00",
        "logsource": "host",
        "program": "app",
        "pid": "12",
        "message": "it works",
    }


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("%{NUMBR:x}", "there is no pattern 'NUMBR'; did you mean 'NUMBER'?"),
        ("%{INT:x:number}", "there is no type 'number'"),
        ("%{A}", "the pattern 'A' contains itself"),
        ("%{INT:x:int} %{WORD:x}", "the field 'x' is both int and string"),
    ],
)
def test_a_pattern_that_is_none_is_told(pattern: str, reason: str) -> None:
    definitions = {"A": "%{B}", "B": "x%{A}"}
    with pytest.raises(GrokError, match=re.escape(reason)):
        compiled(pattern, definitions)
    with pytest.raises(ValidationError, match=re.escape(reason)):
        GrokConfig(match={"value": (pattern,)}, pattern_definitions=definitions)


def test_a_field_has_one_type_in_all_patterns() -> None:
    with pytest.raises(ValidationError, match="the field 'n' is both int and string"):
        GrokConfig(match={"value": ("%{INT:n:int}", "%{WORD:n}")})


# --- long lines ------------------------------------------------------------------------------------------------------


def _recursing(items: Any) -> list[str]:
    """The repetitions in a parsed expression for which Java recurses as often as they repeat."""
    found = []
    for kind, content in items:
        name = str(kind)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, body = content
            single = len(body) == 1 and str(body[0][0]) in ("LITERAL", "NOT_LITERAL", "IN", "ANY", "CATEGORY")
            if not single and int(high) > 128:
                found.append(f"{body}{{{low},{high}}}")
        for part in _parts(content):
            found += _recursing(part)
    return found


def _parts(content: Any) -> list[Any]:
    """The expressions inside one."""
    if isinstance(content, re._parser.SubPattern):  # type: ignore[attr-defined]
        return [content]
    return [part for item in content for part in _parts(item)] if isinstance(content, (list, tuple)) else []


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_repeats_a_group_as_often_as_a_line_is_long(name: str) -> None:
    parser: Any = re._parser  # type: ignore[attr-defined]
    assert _recursing(parser.parse(compiled(f"%{{{name}}}").regex)) == []


def test_the_check_of_repetitions_finds_them() -> None:
    parser: Any = re._parser  # type: ignore[attr-defined]
    assert len(_recursing(parser.parse(r"(?:(x)|y(?:\\\\.|[^\\\\])*?z)(?:ab)+"))) == 2
    assert _recursing(parser.parse(r"(?:ab|c)*+x*[yz]+(?:de|f){0,9}")) == []


PLAIN = {
    "QUOTEDSTRING": r"""(?:"(?:\\.|[^\\"])*"|'(?:\\.|[^\\'])*'|`(?:\\.|[^\\`])*`)""",
    "EMAILADDRESS": r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~.-]+@%{HOSTNAME}",
    "HOSTNAME": r"\b[0-9A-Za-z](?:[0-9A-Za-z-]{0,62})(?:\.[0-9A-Za-z](?:[0-9A-Za-z-]{0,62}))*\.?(?![0-9A-Za-z-])",
    "URIPATH": r"(?:/[A-Za-z0-9$.+!*'(){},~:;=@#%&_\-]*)+",
    "UNIXPATH": r"(?:/[\w%!$@:.,+~-]*)+",
    "PATH": r"(?:%{UNIXPATH}|(?:[A-Za-z]+:|\\)(?:\\[^\\?*]*)+)",
}
"""The same patterns as anybody would write them, with repeated groups."""


@pytest.mark.parametrize(
    ("name", "characters"),
    [
        ("QUOTEDSTRING", """\\"'`.:ax1\n"""),
        ("EMAILADDRESS", "@@@..-ax1: "),
        ("HOSTNAME", "..--ax1:/ "),
        ("URIPATH", "//.:@ax1? "),
        ("UNIXPATH", "//.:@ax1? "),
        ("PATH", "/\\\\::.ax1?"),
    ],
)
@pytest.mark.parametrize("behind", ["", "[./:@]?x", r"\.%{WORD}", "[/: ]1", '["x: ]$'])
def test_patterns_for_long_lines_match_what_plain_ones_match(name: str, characters: str, behind: str) -> None:
    chance = random.Random(name + behind)
    used = re.compile(compiled(f"%{{{name}:found}}{behind}").regex)
    plain = re.compile(compiled(f"%{{{name}:found}}{behind}", PLAIN).regex)
    matches = 0
    for _ in range(2000):
        text = "".join(chance.choices(characters, k=chance.randrange(4, 16)))
        expected = [(match.span(), match.groups()) for match in plain.finditer(text)]
        assert [(match.span(), match.groups()) for match in used.finditer(text)] == expected
        matches += len(expected)
    assert matches > 0


def test_a_long_name_of_a_host_ends_where_no_name_can_go_on() -> None:
    longest = ".".join(string.ascii_lowercase[number % 26] for number in range(127))
    match = re.search(compiled("%{HOSTNAME:host}").regex, longest)
    assert match is not None
    assert match[1] == longest
