"""What pydantic found, in plain words and at its place in the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails
from yaml.nodes import Node, ScalarNode

from holdfast.config.known import Path, known_keys
from holdfast.config.plugins import KEY_ERROR, PLAIN_ERROR
from holdfast.config.positions import NULL, Document, Place, Problem, describe, is_secret_key, without_password
from holdfast.config.secrets import HIDDEN, SECRET_ERROR, Resolved
from holdfast.config.units import VALUE_ERROR
from holdfast.registry import Registry, did_you_mean

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list, with '- ' before each entry",
    "tuple": "a list, with '- ' before each entry",
    "dict": "a mapping of 'key: value' lines",
    "model": "a mapping of 'key: value' lines",
}
_TYPE_ERROR = re.compile(rf"({'|'.join(_EXPECTED)})_(?:type|parsing|parsing_size|from_float|attributes_type)")
_BOUNDS = {
    "greater_than": "is too small; it must be more than {gt}",
    "greater_than_equal": "is too small; it must be at least {ge}",
    "less_than": "is too large; it must be less than {lt}",
    "less_than_equal": "is too large; it must be at most {le}",
    "too_short": "has too few entries; it needs at least {min_length}",
    "too_long": "has too many entries; at most {max_length} are possible",
    "string_too_short": "is too short; it needs at least {min_length} characters",
    "string_too_long": "is too long; at most {max_length} characters are possible",
    "string_pattern_mismatch": "does not match the pattern {pattern}",
}
_NO_REASON = "the reason is not shown because it may contain the value"


class Explainer:
    """Turns the errors of one validation into problems of one document."""

    def __init__(
        self, document: Document, data: Any, model: type[BaseModel], registry: Registry, secrets: set[str]
    ) -> None:
        self._document = document
        self._data = data
        self._model = model
        self._registry = registry
        self._secrets = secrets

    def problems(self, errors: Iterable[ErrorDetails]) -> list[Problem]:
        """For each error the node at which the caret belongs, and the message."""
        return [self._problem(error) for error in errors if not self._is_echo(error)]

    def _is_echo(self, error: ErrorDetails) -> bool:
        """Whether pydantic only says that another error kept it from something."""
        if error["type"] == "too_short":  # entries that failed are not counted
            given = self._document.find(error["loc"]).node.value
            return bool(len(given) >= error["ctx"]["min_length"])
        return error["type"] == "default_factory_not_called"

    def _problem(self, error: ErrorDetails) -> Problem:
        path = tuple(step for step in error["loc"] if step != "[key]")
        place = self._document.find(path)
        is_key = error["type"] in {"extra_forbidden", KEY_ERROR} or error["loc"][-1:] == ("[key]",)
        if is_key and place.key is not None and place.path[-1:] == path[-1:]:
            return place.key, self._message(error, path, place, describe(place.key))
        return place.node, self._message(error, path, place, self._quoted(place))

    def _message(self, error: ErrorDetails, path: Path, place: Place, quoted: str) -> str:
        kind, context = error["type"], error.get("ctx", {})
        if kind == "missing":
            return f"missing key {path[-1]!r}{_inside(place.path)}"
        if kind == "extra_forbidden":
            return self._unknown_key(path)
        if kind in {KEY_ERROR, PLAIN_ERROR, SECRET_ERROR}:
            return error["msg"]
        if kind == VALUE_ERROR:
            return f"{quoted} {error['msg']}"
        if kind in _BOUNDS:
            return f"{quoted} {_BOUNDS[kind].format_map(context)}"
        if kind in {"literal_error", "enum"}:
            return _not_one_of(str(context["expected"]), quoted, place.node)
        if type_error := _TYPE_ERROR.fullmatch(kind):
            return _wrong_type(_EXPECTED[type_error[1]], quoted, place.node)
        return self._foreign(error["msg"], place, quoted)

    def _unknown_key(self, path: Path) -> str:
        known = known_keys(self._model, path[:-1], self._registry)
        hint = did_you_mean(str(path[-1]), known) or f"; possible: {', '.join(known)}"
        return f"unknown key {path[-1]!r}{hint}"

    def _foreign(self, message: str, place: Place, quoted: str) -> str:
        """A message that somebody else wrote: it must not carry what a reference stands for."""
        value = _follow(self._data, place.path)
        if isinstance(value, Resolved) or self._is_secret(place):
            return f"{quoted} is not accepted; {_NO_REASON}"
        shown_as = dict.fromkeys(self._secrets, HIDDEN)
        shown_as |= {str.__str__(resolved): resolved.written for resolved in _references(value)}
        for hidden, shown in shown_as.items():
            for text in {hidden, repr(hidden)[1:-1]} - {""}:
                message = message.replace(text, shown)
        return re.sub(r"^(Value error|Assertion failed), ", "", without_password(message))

    def _quoted(self, place: Place) -> str:
        return "this value" if self._is_secret(place) else describe(place.node)

    def _is_secret(self, place: Place) -> bool:
        """Whether a secret stands here itself, or at least something whose key says so."""
        if not isinstance(place.node, ScalarNode) or isinstance(_follow(self._data, place.path), Resolved):
            return False
        names = [step for step in place.path if isinstance(step, str)]
        return is_secret_key(names[-1] if names else "") or place.node.value in self._secrets


def _inside(path: Path) -> str:
    where = ".".join(map(str, path))
    return f" in {where if where.isprintable() else repr(where)}" if path else ""


def _not_one_of(expected: str, quoted: str, node: Node) -> str:
    hint = did_you_mean(str(node.value), re.findall(r"'([^']*)'", expected))
    return f"expected {expected}, not {quoted}{hint}"


def _wrong_type(expected: str, quoted: str, node: Node) -> str:
    if node.tag == NULL:
        return f"expected {expected}, but nothing stands here"
    quote_it = "; put it in quotes" if expected == "text" and isinstance(node.value, str) else ""
    return f"expected {expected}, not {quoted}{quote_it}"


def _follow(data: Any, path: Path) -> Any:
    for step in path:
        # A value with a refused tag was not read, so its node has more below it than the data.
        if not isinstance(data, dict | list):
            return None
        data = data.get(step) if isinstance(data, dict) else data[int(step)]
    return data


def _references(value: Any) -> Iterator[Resolved]:
    if isinstance(value, Resolved):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _references(entry)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for entry in value:
            yield from _references(entry)
