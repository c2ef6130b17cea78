"""Parses YAML text into nodes, and finds the line and column of a value in the file.

Scalars follow YAML 1.2: only `true` and `false` are truth values, `12:30` and `2024-01-01` are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from holdfast.config.secrets import REFERENCE
from holdfast.errors import ConfigError, Mark

MAX_DEPTH = 64
MAX_ALIASES = 100
MAX_NODES = 50_000

NULL, BOOL, INT, FLOAT, STR, LIST, MAP = (
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")
)
Problem = tuple[Node, str]

# The line breaks that PyYAML counts.
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
# Values of such keys are never quoted, even if the key itself is a mistake.
_SECRET_KEY = re.compile(r"pas+w|pwd|\bpw\b|secret|token|credential|api_?key|access_?key|jaas", re.IGNORECASE)
_SECRET_ENTRY = re.compile(rf"((?:{_SECRET_KEY.pattern})[^\s:]*\s*:\s*)(?!['\"]?\$\{{)(\S.*)", re.IGNORECASE)
# As in the parameters of a connection, or of an address.
_SECRET_PARAMETER = re.compile(rf"(?:{_SECRET_KEY.pattern})\w*=(?!['\"]?\$\{{)[^\s&]", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(://[^/\s:@]*:)([^/\s@$]+)(?=@)")
# The path of a web address may be a token, as in those of webhooks.
_PATH_IN_URL = re.compile(r"(https?://[^/\s'\"]+/)(?!\$\{)([^\s'\"]+)")
_PLAIN_WORDS = {
    "mapping values are not allowed": "a ':' is not allowed here; check the indentation, or quote the value",
    "character '\\t'": "a tab is not allowed here; use spaces",
    "cannot start any token": "a value cannot begin with this; quote the value",
    "expected <block end>": "this line does not fit the indentation of the lines above",
    "could not find expected ':'": "a ':' is missing after this key",
    "found unexpected end of stream": "the quote that is opened here is never closed",
    "but found another document": "only one document is allowed in a file; remove this '---'",
    "but got '{'": "a '{' is not allowed here; within {…} and […] a reference needs quotes: \"${env:NAME}\"",
    "found undefined alias": "this alias has no anchor above it",
}


# `key:value` at the start of an entry; the blank after a colon is easily forgotten. Addresses are not keys.
_NO_BLANK = re.compile(r"(?P<before>\s*(?:- +)?)(?P<key>[A-Za-z_][\w-]*):(?!//)[^\s:]")


# A line with a value of its own after the colon, as against one whose value is below it.
_HAS_VALUE = re.compile(r":\s+[^\s#|>&]")


class _BoundExceeded(yaml.MarkedYAMLError):
    """The file has more levels, values or aliases than a configuration can need."""


class _Loader(yaml.SafeLoader):
    """Composes nodes within bounds; constructs no objects."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (filled below, as PyYAML wants it)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = self._aliases = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self._depth += 1
        self._nodes += 1
        self._aliases += self.check_event(yaml.AliasEvent)
        for count, limit, of in (
            (self._depth, MAX_DEPTH, "levels"),
            (self._nodes, MAX_NODES, "values"),
            (self._aliases, MAX_ALIASES, "aliases"),
        ):
            if count > limit:
                mark = self.get_mark()
                raise _BoundExceeded(problem=f"more than {limit} {of} are not allowed", problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


for _tag, _pattern, _first in (
    (NULL, r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    (BOOL, r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    (INT, r"[-+]?[0-9]+", list("-+0123456789")),
    (FLOAT, r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"{_pattern}\Z"), _first)


@dataclass(frozen=True)
class YamlPosition:
    """A value in the file, its key if it has one, and its path in the data."""

    node: Node
    key: Node | None
    path: tuple[str | int, ...]


class Document:
    """One YAML file, parsed."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.lines = _LINE_BREAK.split(text)
        self.root = self._compose(text)

    def find(self, path: Sequence[str | int]) -> YamlPosition:
        """Return the position of a path of the data, or the last position on the way that is in the file."""
        node, key = self.root, None
        found: list[str | int] = []
        for step in path:
            entry = _entry(node, step)
            # Names of union members are in pydantic's paths but not in the file.
            if entry is not None:
                key, node = entry
                found.append(step)
        return YamlPosition(node, key, tuple(found))

    def error(self, problems: Iterable[Problem], secrets: Iterable[str]) -> ConfigError:
        """Return all problems as one error, in the order of the file; quoted lines do not show these secrets."""
        lines = self.shown_lines(secrets)
        ordered = sorted(set(problems), key=lambda problem: (problem[0].start_mark.index, problem[1]))
        return ConfigError([(self.mark(node, lines), message) for node, message in ordered])

    def shown_lines(self, secrets: Iterable[str]) -> list[str]:
        """Return the lines as messages quote them: without these secrets, and without values that look like secrets."""
        return _hide(self.lines, self.root, frozenset(secrets))

    def mark(self, node: Node, lines: Sequence[str]) -> Mark:
        """Return where the node begins; `lines` are those of the file as messages quote them."""
        return self._mark(node.start_mark, lines)

    def _mark(self, mark: yaml.Mark, lines: Sequence[str]) -> Mark:
        text = lines[mark.line] if mark.line < len(lines) else ""
        return Mark(self.file, mark.line + 1, mark.column + 1, text)

    def _compose(self, text: str) -> Node:
        loader = None
        try:
            loader = _Loader(text)
            root = loader.get_single_node()
        except yaml.reader.ReaderError as error:
            raise self._unreadable_character(text, error) from None
        except _BoundExceeded as error:
            raise self._at(error.problem_mark, str(error.problem)) from None
        except yaml.MarkedYAMLError as error:
            raise self._not_yaml(error) from None
        except (ValueError, OverflowError) as error:  # PyYAML passes impossible escapes on to chr() and int()
            raise self._at(loader.get_mark() if loader else None, f"not valid YAML: {error}") from None
        if root is None:
            raise ConfigError([(Mark(self.file, 1, 1), "the file is empty")])
        return root

    def _unreadable_character(self, text: str, error: yaml.reader.ReaderError) -> ConfigError:
        before = _LINE_BREAK.split(text[: error.position])
        mark = yaml.Mark(self.file, error.position, len(before) - 1, len(before[-1]), None, 0)
        return self._at(mark, f"the character U+{ord(text[error.position]):04X} is not allowed in YAML")

    def _not_yaml(self, error: yaml.MarkedYAMLError) -> ConfigError:
        problem = error.problem or "not valid YAML"
        if error.problem_mark is not None and (hint := self._layout_problem(error.problem_mark, problem)):
            return self._at(*hint)
        unclosed = "end of stream" in problem and error.context_mark
        message = next((plain for raw, plain in _PLAIN_WORDS.items() if raw in problem), f"not valid YAML: {problem}")
        return self._at(unclosed or error.problem_mark or error.context_mark, message)

    def _layout_problem(self, mark: yaml.Mark, problem: str) -> tuple[yaml.Mark, str] | None:
        """Return the mark and the message of a mistake that YAML notices only later; None if none is found."""
        number = min(mark.line, len(self.lines) - 1)
        if "character '\\t'" in problem and not self.lines[number][: mark.column].strip():
            return mark, "this line is indented with a tab; YAML needs spaces"
        above = next((at for at in range(number - 1, -1, -1) if self.lines[at].strip()), number)
        for at in (above, number):
            if missing := _NO_BLANK.match(self.lines[at]):
                column = missing.end("key")
                there = yaml.Mark(self.file, 0, at, column, None, 0)
                return there, f"a blank is missing after the ':' of {missing['key']!r}"
        deeper = _indent(self.lines[number]) > _indent(self.lines[above])
        if "mapping values are not allowed" in problem and deeper and _HAS_VALUE.search(self.lines[above]):
            return mark, "this line is indented below a line that has a value already; give both the same indentation"
        return None

    def _at(self, mark: yaml.Mark | None, message: str) -> ConfigError:
        if mark is None:
            return ConfigError([(Mark(self.file, 1, 1), message)])
        # Text that cannot be parsed has no nodes; everything after a secret's key is hidden.
        lines = [_without_secret(line) for line in self.lines]
        return ConfigError([(self._mark(mark, lines), message)])


def has_secret_entry(line: str) -> bool:
    """Return whether the line has an entry or a parameter that is named as a secret and is not a reference."""
    return _SECRET_ENTRY.search(line) is not None or has_secret_parameter(line)


def has_secret_parameter(text: str) -> bool:
    """Return whether the text has a parameter such as `password=…` whose value is not a reference."""
    return _SECRET_PARAMETER.search(text) is not None


def is_secret_key(key: str) -> bool:
    """Return whether the name of a key suggests that its value is a secret."""
    # A blank or a tab inside a key is a mistake, too.
    written = "".join(key.split())
    return written != "allow_plaintext_secrets" and _SECRET_KEY.search(written) is not None


def describe(node: Node) -> str:
    """Return the value as written in the file, shortened, for a message."""
    if isinstance(node, ScalarNode):
        text = node.value if len(node.value) <= 60 else node.value[:57] + "..."
        return text if node.tag != STR and text.isprintable() else repr(without_password(text))
    return "this list" if isinstance(node, SequenceNode) else "this mapping"


def _entry(node: Node, step: str | int) -> tuple[Node | None, Node] | None:
    if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
        return None, node.value[step]
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.value if key.value == step), None)
    return None


def without_blank(text: str) -> str | None:
    """Return the key if the text looks like `key:value`, an entry without the blank after its colon."""
    found = _NO_BLANK.match(text)
    return found["key"] if found else None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _hide(lines: Sequence[str], root: Node, secrets: frozenset[str]) -> list[str]:
    hidden = [_without_tokens(line) for line in lines]
    for key, node in scalars_of(root):
        # A value that begins with '!' is a tag of an empty value.
        literal = REFERENCE.sub("", node.value) or node.tag.startswith("!")
        if literal and (node.value in secrets or is_secret_key(key)):
            for number in range(node.start_mark.line, min(node.end_mark.line, len(lines) - 1) + 1):
                start = node.start_mark.column if number == node.start_mark.line else 0
                end = node.end_mark.column if number == node.end_mark.line else len(lines[number])
                hidden[number] = hidden[number][:start] + "*" * (end - start) + hidden[number][end:]
    return hidden


def without_password(text: str) -> str:
    """Return the text with the password of every URL blanked out."""
    return _PASSWORD_IN_URL.sub(_blank_out, text)


def _without_secret(line: str) -> str:
    key, colon, value = line.partition(":")
    if is_secret_key(key) and "${" not in value:
        return key + colon + "*" * len(value)
    return _SECRET_ENTRY.sub(_blank_out, _without_tokens(line))


def _without_tokens(line: str) -> str:
    return _PATH_IN_URL.sub(_blank_out, without_password(line))


def _blank_out(found: re.Match[str]) -> str:
    return found[1] + "*" * len(found[2])


def scalars_of(node: Node) -> Iterator[tuple[str, ScalarNode]]:
    """Yield all plain values at and below a node, each with the key that it belongs to."""
    return _scalars(node, "", set())


def _scalars(node: Node, key: str, visited: set[int]) -> Iterator[tuple[str, ScalarNode]]:
    if isinstance(node, ScalarNode):
        yield key, node
    elif id(node) not in visited:
        visited.add(id(node))
        for entry in node.value:
            if isinstance(node, MappingNode):
                yield from _scalars(entry[1], str(entry[0].value), visited)
            else:
                yield from _scalars(entry, key, visited)
