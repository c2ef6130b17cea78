"""Processors and conditions of Data Prepper in the words of holdfast."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from holdfast.convert.converted_file import ForeignSettings

# A word of Data Prepper's expressions: text, a field such as /user/id, a number or name, an operator.
_TOKEN = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|/[\w./@-]+|-?\d+(?:\.\d+)?|\w+|==|!=|<=|>=|=~|!~|[<>(){},+*-])""")
_OPERATORS = {"=~": "rlike", "!~": "not rlike", "{": "(", "}": ")"}
_WORDS = {"and", "or", "not", "in", "true", "false", "null"}
_FIELD_IN_TEXT = re.compile(r"\$\$?\{/?([^}]+)\}")


def column(key: object) -> str:
    """Return the column of a key of Data Prepper: `/a/b` and `a/b` are the field b in a."""
    return str(key).strip("/").replace("/", ".")


def condition(settings: ForeignSettings, name: str, text: Any) -> str:
    """Return a condition of Data Prepper in Spark SQL; a note asks to check what cannot be converted."""
    words: list[str] = []
    position, written = 0, str(text).strip()
    while position < len(written):
        token = _TOKEN.match(written, position)
        if token is None or (token[1].isidentifier() and token[1].lower() not in _WORDS):
            settings.note(name, f"must be changed: {written!r} is not converted to Spark SQL")
            return "false"
        words.append(_word(token[1]))
        position = token.end()
    joined = re.sub(r"\( | (?=[),])", lambda found: found[0].strip(), " ".join(words))
    return re.sub(r"!= null\b", "IS NOT NULL", re.sub(r"== null\b", "IS NULL", joined))


def _word(token: str) -> str:
    if token.startswith("/"):
        return ".".join(f"`{part}`" if not part.isidentifier() else part for part in token.strip("/").split("/"))
    if token.startswith('"'):
        return _text(token[1:-1])
    return _OPERATORS.get(token, token)


def _text(text: str) -> str:
    escaped = text.replace("'", "\\'")
    return f"'{escaped}'"


def with_fields(text: str) -> str:
    """Return a text with `${/field}` as a template of holdfast, with `{field}`."""
    literal = text.replace("{", "{{").replace("}", "}}")
    return re.sub(r"\$\$?\{\{/?([^}]+)\}\}", lambda found: f"{{{column(found[1])}}}", literal)


def processor(name: str, settings: ForeignSettings) -> dict[str, Any] | None:
    """Return a processor of holdfast; None, and a note, if there is no equivalent."""
    convert = _PROCESSORS.get(name)
    if convert is None:
        settings.made.note(settings.path, "not converted: use `sql`, `add_entries` or `python`")
        return None
    converted = convert(settings)
    settings.rest()
    return {name: converted}


def _may_fail(settings: ForeignSettings, when: str, tags: str = "tags_on_failure") -> dict[str, Any]:
    """Return `when` and `on_error`: Data Prepper leaves a row unchanged if a processor fails on it."""
    given = settings.take(when)
    tagged = settings.take(tags)
    chosen: dict[str, Any] = {} if given is None else {"when": condition(settings, when, given)}
    chosen["on_error"] = "tag" if tagged else "keep"
    return chosen | ({"tags_on_failure": tagged} if tagged else {})


def _grok(settings: ForeignSettings) -> dict[str, Any]:
    settings.drop("break_on_match", "named_captures_only", "keep_empty_captures", "timeout_millis")
    given = settings.group("match")
    match = {column(key): given.texts(key) for key in list(given)}
    more = settings.copy({"pattern_definitions": "pattern_definitions", "target_key": "target_key"})
    return {"match": match} | more | _may_fail(settings, "grok_when", "tags_on_match_failure")


def _date(settings: ForeignSettings) -> dict[str, Any]:
    given = settings.groups("match")
    match = [{"key": column(entry.take("key", "")), "patterns": entry.texts("patterns")} for entry in given]
    converted: dict[str, Any] = {"match": match}
    if not match:
        settings.note("match", "must be changed: name the column with the time; the time of arrival is not known here")
        converted["match"] = [{"key": "time", "patterns": ["iso8601"]}]
        settings.drop("from_time_received")
    names = {"destination": "destination", "source_timezone": "source_timezone"}
    return converted | settings.copy(names) | _may_fail(settings, "date_when")


def _key_value(settings: ForeignSettings) -> dict[str, Any]:
    names = ("field_split_characters", "value_split_characters", "include_keys")
    source, destination = settings.take("source", "message"), settings.take("destination", "parsed_message")
    converted = {"source": column(source), "destination": column(destination)}
    return converted | settings.copy(dict(zip(names, names, strict=True))) | _may_fail(settings, "key_value_when")


def _parse_json(settings: ForeignSettings) -> dict[str, Any]:
    destination = settings.take("destination")
    if destination is None:
        settings.note("destination", "must be changed: give a `schema`, so that keys become columns; here it is a map")
    converted = {"source": column(settings.take("source", "message")), "destination": column(destination or "parsed")}
    return converted | settings.copy({"delete_source": "delete_source"}) | _may_fail(settings, "parse_when")


def _rename_keys(settings: ForeignSettings) -> dict[str, Any]:
    entries = []
    for entry in settings.groups("entries"):
        renamed = {key: column(entry.take(key, "")) for key in ("from_key", "to_key")}
        entries.append(renamed | entry.copy({"overwrite_if_to_key_exists": "overwrite_if_to_key_exists"}))
        entry.rest()
    return {"entries": entries}


def _delete_entries(settings: ForeignSettings) -> dict[str, Any]:
    return {"with_keys": [column(key) for key in settings.texts("with_keys")]}


def _add_entries(settings: ForeignSettings) -> dict[str, Any]:
    entries = []
    for entry in settings.groups("entries"):
        added = {"key": column(entry.take("key", ""))} | entry.copy({"value": "value"})
        expression, text, when = entry.take("value_expression"), entry.take("format"), entry.take("add_when")
        if expression is not None:
            added["value_expression"] = condition(entry, "value_expression", expression)
        if text is not None:
            added["value_expression"] = _concatenation(str(text))
        if "value" not in added and "value_expression" not in added:
            entry.note("value", "must be changed: give a value or an expression")
            added["value_expression"] = "null"
        added |= entry.copy({"overwrite_if_key_exists": "overwrite_if_key_exists"})
        entries.append(added if when is None else added | {"add_when": condition(entry, "add_when", when)})
        entry.rest()
    return {"entries": entries}


def _concatenation(text: str) -> str:
    """Return `${/a} and ${/b}` as an expression: concat(a, ' and ', b)."""
    parts = _FIELD_IN_TEXT.split(text)
    words = [column(part) if number % 2 else _text(part) for number, part in enumerate(parts) if part]
    return f"concat({', '.join(words)})"


def _drop_events(settings: ForeignSettings) -> dict[str, Any]:
    settings.drop("handle_failed_events")
    return {"drop_when": condition(settings, "drop_when", settings.take("drop_when", "true"))}


_PROCESSORS: dict[str, Callable[[ForeignSettings], dict[str, Any]]] = {
    "grok": _grok,
    "date": _date,
    "key_value": _key_value,
    "parse_json": _parse_json,
    "rename_keys": _rename_keys,
    "delete_entries": _delete_entries,
    "add_entries": _add_entries,
    "drop_events": _drop_events,
}
