"""Turns pydantic's errors into plain messages with their position in the file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from holdfast.config import foreign_names
from holdfast.config.options import Options
from holdfast.config.plugins import KEY_ERROR, PLAIN_ERROR, Uses
from holdfast.config.secrets import HIDDEN, REFERENCE, SECRET_ERROR, Resolved
from holdfast.config.units import VALUE_ERROR, format_like
from holdfast.config.yaml_positions import (
    NULL,
    Document,
    Problem,
    YamlPosition,
    describe,
    is_secret_key,
    without_blank,
    without_password,
)
from holdfast.errors import UsageError
from holdfast.registry import Registry, did_you_mean, most_similar

_SHORTEST_HIDDEN = 4
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
    "too_long": "has too many entries; at most {max_length} are allowed",
    "string_too_short": "is too short; it needs at least {min_length} characters",
    "string_too_long": "is too long; at most {max_length} characters are allowed",
    "string_pattern_mismatch": "does not match the pattern {pattern}",
}
# Words that mean the same; the most similar choice may be a wrong hint.
_SYNONYMS = (
    ("seconds", "s", "sec", "epoch"),
    ("millis", "milliseconds", "ms"),
    ("micros", "microseconds", "us"),
    ("nanos", "nanoseconds", "ns"),
    ("iso8601", "iso"),
    ("jsonl", "ndjson", "json_lines"),
    ("auto", "automatic"),
    ("gzip", "gz"),
    ("bzip2", "bz2"),
    ("zstd", "zst"),
    ("hour", "hourly"),
    ("day", "daily"),
    ("earliest", "smallest", "beginning", "oldest"),
    ("latest", "largest", "newest", "end"),
)
_UNLIKE = {"zip"}
"""Words that resemble a choice and mean something else."""
_NO_REASON = "the reason is not shown because it may contain the value"
_PLAIN_VALUE = re.compile(r"[\w./-]+")
_PIPELINE = ("pipelines", "NAME")
Path = tuple[str | int, ...]


class Explainer:
    """Turns the errors of one validation into problems of one document."""

    def __init__(
        self,
        document: Document,
        data: Any,
        model: type[BaseModel],
        registry: Registry,
        secrets: set[str],
        references: Mapping[str, str],
    ) -> None:
        """`secrets` are plain-text secrets of the file, `references` the values of all references as written."""
        self._document = document
        self._data = data
        self._model = model
        self._registry = registry
        self._secrets = secrets
        self._references = references
        self._missing: dict[Path, str] = {}

    def problems(self, errors: Iterable[ErrorDetails]) -> list[Problem]:
        """Return for each mistake the node below which the caret belongs, and the message."""
        found = list(errors)
        self._missing = _missing_beside(found)
        meant = {path for error in found if error["type"] == "extra_forbidden" for path in self._meant(error["loc"])}
        found = [error for error in found if not self._is_echo(error) and error["loc"] not in meant]
        choices = {id(self._node(error)) for error in found if error["type"] == "literal_error"}
        problems: dict[Any, Problem] = {}
        for error in found:
            # A value that fits no member of a union has an error for each of them.
            is_type, node = _TYPE_ERROR.fullmatch(error["type"]), id(self._node(error))
            if not (is_type and node in choices):
                problems.setdefault(node if is_type else id(error), self._problem(error))
        return list(problems.values())

    def _node(self, error: ErrorDetails) -> Node:
        return self._document.find(error["loc"]).node

    def _meant(self, path: Path) -> Iterator[Path]:
        """Yield the paths that an unknown key was probably meant for; these are not reported as missing, too."""
        position, beside = self._document.find(path), path[:-1]
        possible = possible_keys(self._model, beside, self._registry)
        if name := foreign_names.new_name(position.path) or most_similar(str(path[-1]), possible):
            yield (*beside, name)
        elif len(beside) > len(_PIPELINE) and foreign_names.message_for(position.path, position.node):
            yield from ((*beside, name) for name in possible)
        elif path in self._missing and not self._group_with(path, possible):
            yield (*beside, self._missing[path])

    def _is_echo(self, error: ErrorDetails) -> bool:
        """Return whether the error is only a consequence of another one."""
        if error["type"] == "too_short":  # entries that failed are not counted
            return bool(len(self._node(error).value) >= error["ctx"]["min_length"])
        if error["type"] == "literal_error" and isinstance(self._node(error), MappingNode):
            # A mapping is possible here, too, and its own errors are shown.
            return bool(possible_keys(self._model, self._document.find(error["loc"]).path, self._registry))
        return error["type"] == "default_factory_not_called"

    def _problem(self, error: ErrorDetails) -> Problem:
        path = tuple(step for step in error["loc"] if step != "[key]")
        position = self._document.find(path)
        is_key = error["type"] in {"extra_forbidden", KEY_ERROR} or error["loc"][-1:] == ("[key]",)
        foreign = _named_elsewhere(error, position)
        if is_key and position.key is not None and position.path[-1:] == path[-1:]:
            return position.key, foreign or self._message(error, path, position, describe(position.key))
        return position.node, foreign or self._message(error, path, position, self._quoted(position))

    def _message(self, error: ErrorDetails, path: Path, position: YamlPosition, quoted: str) -> str:
        kind, context = error["type"], error.get("ctx", {})
        if kind == "missing":
            return f"missing key {path[-1]!r}{_inside(position.path)}"
        if kind == "extra_forbidden":
            return self._unknown_key(path)
        if kind in {KEY_ERROR, PLAIN_ERROR, SECRET_ERROR}:
            return self._without_values(error["msg"], position)
        if kind == VALUE_ERROR:
            return f"{quoted} {self._without_values(error['msg'], position)}"
        if kind in _BOUNDS:
            limits = {name: format_like(position.node.value, limit) for name, limit in context.items()}
            words = _plain_name(str(context.get("pattern", "")))
            return f"{quoted} {words or _BOUNDS[kind].format_map(limits)}"
        if kind in {"literal_error", "enum"}:
            return _not_one_of(str(context["expected"]), quoted, position.node)
        if type_error := _TYPE_ERROR.fullmatch(kind):
            hint = "" if self._is_secret(position) else self._as_entry(position)
            return _wrong_type(_EXPECTED[type_error[1]], quoted, position.node) + hint
        return self._foreign(error["msg"], position, quoted)

    def _unknown_key(self, path: Path) -> str:
        if key := without_blank(str(path[-1])):
            return f"a blank is missing after the ':' of {key!r}"
        possible = possible_keys(self._model, path[:-1], self._registry)
        elsewhere = self._group_with(path, possible)
        hint = elsewhere or did_you_mean(str(path[-1]), possible)
        if not hint and path in self._missing:
            hint = f"; did you mean {self._missing[path]!r}, which is missing?"
        return (
            f"unknown key {path[-1]!r}{hint}" if hint else f"unknown key {path[-1]!r}; possible: {', '.join(possible)}"
        )

    def _as_entry(self, position: YamlPosition) -> str:
        """Return a hint for a plain value where a mapping is expected, if it is clear what was meant."""
        node = position.node
        if not isinstance(node, ScalarNode) or node.tag == NULL:
            return ""
        models = list(_models(self._model, position.path, self._registry))
        if examples := [model.EXAMPLE for model in models if issubclass(model, Options) and model.EXAMPLE]:
            return f"; write for example {examples[0]}"
        fields = [(name, field) for model in models for name, field in _fields(model).items()]
        needed = [name for name, field in fields if field.is_required()]
        needed = needed or [name for name, field in fields if node.value in get_args(field.annotation)]
        if len(needed) != 1:
            return ""
        # Addresses are not repeated: they may contain a password.
        plain = _PLAIN_VALUE.fullmatch(node.value)
        return f"; write '{needed[0]}: {node.value}'" if plain else f"; write it as the value of {needed[0]!r}"

    def _group_with(self, path: Path, possible: Iterable[str]) -> str:
        """Return a hint that an unknown key belongs into a group beside it, if exactly one group has such a key."""
        beside, name = path[:-1], str(path[-1])
        keys = {group: possible_keys(self._model, (*beside, group, 0), self._registry) for group in possible}
        groups = [group for group in keys if name in keys[group]]
        return f"; it belongs into {groups[0]!r}" if len(groups) == 1 else ""

    def _foreign(self, message: str, position: YamlPosition, quoted: str) -> str:
        """Return a message of a third party without the values of references and secrets."""
        value = _follow(self._data, position.path)
        if isinstance(value, Resolved) or self._is_secret(position):
            return f"{quoted} is not accepted; {_NO_REASON}"
        return re.sub(r"^(Value error|Assertion failed), ", "", self._without_values(message, position))

    def _without_values(self, message: str, position: YamlPosition) -> str:
        """Return the message with the values of references as they are written in the file, and without secrets."""
        shown_as = dict.fromkeys(self._secrets, HIDDEN)
        for resolved in _references(_follow(self._data, position.path)):
            shown_as[str.__str__(resolved)] = resolved.written
            # A message may quote only a part of the value.
            written = (match[0] for match in REFERENCE.finditer(resolved.written))
            shown_as |= {self._references[part]: part for part in written if part in self._references}
        for hidden in sorted(shown_as, key=len, reverse=True):
            # Shorter ones are no secrets, but parts of most words.
            if len(hidden) >= _SHORTEST_HIDDEN:
                for text in {hidden, repr(hidden)[1:-1]}:
                    message = message.replace(text, shown_as[hidden])
        return without_password(message)

    def _quoted(self, position: YamlPosition) -> str:
        return "this value" if self._is_secret(position) else describe(position.node)

    def _is_secret(self, position: YamlPosition) -> bool:
        """Return whether the value is a secret itself, or has a key that suggests one."""
        if not isinstance(position.node, ScalarNode) or isinstance(_follow(self._data, position.path), Resolved):
            return False
        names = [step for step in position.path if isinstance(step, str)]
        return is_secret_key(names[-1] if names else "") or position.node.value in self._secrets


def _named_elsewhere(error: ErrorDetails, position: YamlPosition) -> str | None:
    kind = error["type"]
    if kind == "extra_forbidden" or (kind == KEY_ERROR and "is not installed" in error["msg"]):
        return foreign_names.message_for(position.path, position.node)
    return foreign_names.message_for_shape(position.path, position.node) if _TYPE_ERROR.fullmatch(kind) else None


def _missing_beside(errors: Iterable[ErrorDetails]) -> dict[Path, str]:
    """By the path of an unknown key, the required key that is missing beside it, if there is exactly one of each."""
    unknown: dict[Path, list[Path]] = {}
    missing: dict[Path, list[Path]] = {}
    for error in errors:
        of_kind = {"extra_forbidden": unknown, "missing": missing}.get(error["type"])
        if of_kind is not None:
            of_kind.setdefault(error["loc"][:-1], []).append(error["loc"])
    pairs = [(unknown[beside], missing[beside]) for beside in unknown.keys() & missing.keys()]
    return {keys[0]: str(names[0][-1]) for keys, names in pairs if len(keys) == len(names) == 1}


def _plain_name(pattern: str) -> str:
    """Return what the pattern of a plain name allows, in words; an empty text for other patterns."""
    match = re.fullmatch(r"\^(?:\[[A-Za-z0-9-]+\])?\[((?:a-z|A-Z|0-9|[._-])+)\](?:\+|\{\d+,\d+\})\$", pattern)
    marks = [repr(mark) for mark in re.sub("a-z|A-Z|0-9", "", match[1])] if match else []
    return f"may have only letters, digits, {', '.join(marks[:-1])} and {marks[-1]}" if len(marks) > 1 else ""


def _inside(path: Path) -> str:
    where = ".".join(map(str, path))
    return f" in {where if where.isprintable() else repr(where)}" if path else ""


def _not_one_of(expected: str, quoted: str, node: Node) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    if isinstance(node, MappingNode):
        given = node.value[0][0].value if node.value else None
        name = _synonym(str(given), choices)
        return f"expected one of the words {', '.join(choices)}, not this mapping{_word(name, choices)}"
    written = str(node.value)
    meant = _synonym(written.lower(), choices)
    hint = f"; did you mean {meant!r}?" if meant in choices else did_you_mean(written, choices)
    if written.lower() in _UNLIKE:
        hint = ""
    return f"expected {expected}, not {quoted}{hint}"


def _synonym(word: str, choices: Sequence[str]) -> str:
    same = [other for words in _SYNONYMS if word in words for other in words if other in choices]
    return word if word in choices or not same else same[0]


def _word(name: object, choices: Collection[object]) -> str:
    return f"; write {name!r} alone, without settings" if name in choices else ""


def _wrong_type(expected: str, quoted: str, node: Node) -> str:
    if node.tag == NULL:
        return f"expected {expected}, but there is no value here"
    if "mapping" in expected and isinstance(node, ScalarNode) and (key := without_blank(node.value)):
        return f"a blank is missing after the ':' of {key!r}"
    if "mapping" in expected and isinstance(node, SequenceNode) and any(isinstance(n, MappingNode) for n in node.value):
        return f"expected {expected}, not a list; remove the '- '"
    hint = ""
    if isinstance(node, ScalarNode) and expected == "text" and node.value not in {"true", "false"}:
        hint = "; put it in quotes"
    elif isinstance(node, ScalarNode) and expected == "a number" and re.fullmatch(r"\d{1,3}%", node.value):
        hint = f"; write {int(node.value[:-1]) / 100:g}"
    return f"expected {expected}, not {quoted}{hint}"


def _follow(data: Any, path: Path) -> Any:
    for step in path:
        # A value with a refused tag was not read: its node has children that the data lacks.
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


def possible_keys(model: type[BaseModel], path: Path, registry: Registry) -> list[str]:
    """Return the keys that are possible in the mapping at this path, sorted."""
    return sorted({key for found in _models(model, path, registry) for key in _fields(found)})


def _models(annotation: Any, path: Path, registry: Registry) -> Iterator[type[BaseModel]]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        uses = next((extra for extra in arguments[1:] if isinstance(extra, Uses)), None)
        yield from _of_plugin(uses, path, registry) if uses else _models(arguments[0], path, registry)
    elif origin in {Union, UnionType}:
        for member in arguments:
            yield from _models(member, path, registry)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _of_model(annotation, path, registry)
    elif arguments and path:  # an entry of a list, a tuple or a dict
        entry = [argument for argument in arguments if argument is not ...][-1]
        yield from _models(entry, path[1:], registry)


def _of_model(model: type[BaseModel], path: Path, registry: Registry) -> Iterator[type[BaseModel]]:
    if not path:
        yield model
    elif field := _fields(model).get(str(path[0])):
        yield from _models(Annotated[(field.annotation, *field.metadata, None)], path[1:], registry)
    else:  # the name of a union member, which is in pydantic's path but not in the file
        yield from _of_model(model, path[1:], registry)


def _of_plugin(uses: Uses, path: Path, registry: Registry) -> Iterator[type[BaseModel]]:
    try:
        config = registry.get(uses.kind, str(path[0])) if path else None
    except UsageError:
        config = None
    if config is not None:
        yield from _models(config.config, path[1:], registry)


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {_written(name, field): field for name, field in model.model_fields.items()}


def _written(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias or field.alias
    return alias if isinstance(alias, str) else name
