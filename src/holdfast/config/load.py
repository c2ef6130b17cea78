"""Loads the configuration file into `Settings`, or raises one `ConfigError` with everything that is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from holdfast.config.models import Settings
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.secrets import PlaintextRule, References, Resolved, UnsetVariable, is_encodable
from holdfast.config.settings_file import SettingsFile
from holdfast.config.validation_errors import Explainer
from holdfast.config.yaml_positions import (
    BOOL,
    FLOAT,
    INT,
    LIST,
    MAP,
    MAX_DEPTH,
    MAX_NODES,
    NULL,
    STR,
    Document,
    Problem,
)
from holdfast.errors import ConfigError, Mark
from holdfast.registry import Registry

MAX_BYTES = 1_000_000
_NO_MAPPING = "expected keys such as 'pipelines:' at the top of the file"


def load(path: str | Path, registry: Registry, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of a file. References are resolved and plugins are imported; nothing is built."""
    return load_text(_read(path), str(path), registry, environ)


def load_text(text: str, file: str, registry: Registry, environ: Mapping[str, str] = os.environ) -> Settings:
    """Like `load`, for text that is already in memory; `file` is the name that errors show."""
    reading = _Reading(text, file, registry, environ)
    if reading.settings is None or reading.unset or reading.problems:
        raise reading.error(reading.unset)
    return reading.settings.read_from(reading.file())


def check(path: str | Path, registry: Registry, environ: Mapping[str, str] = os.environ) -> Settings | None:
    """Like `load`, but variables may be unset: settings that depend on them are not checked.

    Returns None if the settings cannot be built without these variables.
    """
    reading = _Reading(_read(path), str(path), registry, environ)
    if reading.problems:
        raise reading.error()
    return reading.settings and reading.settings.read_from(reading.file())


class _Reading:
    """One file: its settings, if they are valid, and everything that is wrong with it."""

    def __init__(self, text: str, file: str, registry: Registry, environ: Mapping[str, str]) -> None:
        self._document = Document(file, text)
        self._text = text
        references = References(environ)
        reader = NodeReader(references.resolve)
        try:
            data = reader.read(self._document.root)
        except AliasLimitExceeded as error:
            raise self._document.error([error.problem], ()) from None
        self._rule = PlaintextRule(allowed=_allows_plaintext(data))
        self.settings, errors = _validate(data, {"registry": registry, "plaintext": self._rule})
        self.unset = reader.unset
        """References to variables that are not set."""
        explainer = Explainer(self._document, data, Settings, registry, self._rule.seen, references.values)
        unread = {id(node) for node, _ in [*reader.problems, *reader.unset]}
        # A value that could not be read has been reported already; its wrong type is not reported too.
        wrong = [problem for problem in explainer.problems(errors) if id(problem[0]) not in unread]
        self.problems = reader.problems + wrong
        """Everything else that is wrong."""

    def file(self) -> SettingsFile:
        return SettingsFile(self._document.file, self._text, frozenset(self._rule.seen))

    def error(self, unset: Iterable[Problem] = ()) -> ConfigError:
        return self._document.error([*self.problems, *unset], self._rule.seen)


def _allows_plaintext(data: Any) -> bool:
    # Secrets are validated together with this setting, so it is read first.
    given = data.get("allow_plaintext_secrets") if isinstance(data, dict) else None
    try:
        return TypeAdapter(bool).validate_python(given)
    except ValidationError:
        return False


def _validate(data: Any, context: dict[str, Any]) -> tuple[Settings | None, list[ErrorDetails]]:
    if not isinstance(data, dict):
        return None, [ErrorDetails(type=PLAIN_ERROR, loc=(), msg=_NO_MAPPING, input=None)]
    try:
        return Settings.model_validate(data, context=context), []
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
    # Outside the handler: pydantic's error holds resolved values and must not become the context of ours.
    return None, found


def _read(path: str | Path) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise _unreadable(path, "is a directory, not a file") from None
    except FileNotFoundError:
        raise _unreadable(path, "no such file") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > MAX_BYTES:
        raise _unreadable(path, f"is larger than {MAX_BYTES // 1_000_000} MB")
    return _decode(str(path), content)


def _decode(file: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig").split("\n")
    raise ConfigError([(Mark(file, len(before), len(before[-1]) + 1), "this is not UTF-8 text")])


def _unreadable(path: str | Path, message: str) -> ConfigError:
    return ConfigError([(None, f"{path}: {message}")])


class AliasLimitExceeded(Exception):
    """Aliases expand to more values than a configuration can need. Other problems are then not reported."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


class NodeReader:
    """Turns YAML nodes into plain data. Values that could not be read are None and listed in `problems`.

    A text with a variable that is not set is kept as it is written, and listed in `unset`.
    """

    def __init__(self, resolve: Callable[[str], str]) -> None:
        self._scalars: dict[str, Callable[[str], Any]] = {
            STR: lambda text: resolve(_checked(text)),
            NULL: lambda _: None,
            BOOL: _truth,
            INT: int,
            FLOAT: float,
        }
        self._read_so_far = 0
        self._above: list[int] = []
        self.problems: list[Problem] = []
        self.unset: list[Problem] = []

    def read(self, node: Node) -> Any:
        """Return the data of a node. Keys are always text, as written."""
        self._read_so_far += 1
        if id(node) in self._above:
            raise AliasLimitExceeded((node, "an alias refers to the value that it is part of"))
        if self._read_so_far > MAX_NODES or len(self._above) > MAX_DEPTH:
            raise AliasLimitExceeded((node, "aliases expand to too many values here"))
        self._above.append(id(node))
        try:
            return self._read(node)
        finally:
            self._above.pop()

    def _read(self, node: Node) -> Any:
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if isinstance(node, SequenceNode) and node.tag == LIST:
            return [self.read(item) for item in node.value]
        if isinstance(node, MappingNode) and node.tag == MAP:
            return self._mapping(node)
        return self._tag_refused(node)

    def _mapping(self, node: MappingNode) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value in node.value:
            read = self.read(value)
            if not isinstance(key, ScalarNode) or not is_encodable(key.value):
                self.problems.append((key, "a key must be plain text"))
            elif key.value == "<<" and key.style is None:
                self.problems.append((key, "merging with '<<' is not supported; repeat the keys"))
            elif key.value in data:
                self.problems.append((key, f"the key {key.value!r} is given twice"))
            else:
                data[key.value] = read
        return data

    def _scalar(self, node: ScalarNode) -> Any:
        read = self._scalars.get(node.tag)
        if read is None:
            return self._tag_refused(node)
        try:
            return read(node.value)
        except UnsetVariable as error:
            # Not None: a required value that seems to be missing would be a second, false error.
            self.unset.append((node, str(error)))
            return Resolved(node.value, node.value)
        except ValueError as error:
            # Messages of int() and float() are about Python, and may repeat a secret.
            message = str(error) if node.tag == STR else f"this cannot be read as {node.tag.rpartition(':')[2]}"
            self.problems.append((node, message))
            return None

    def _tag_refused(self, node: Node) -> None:
        # A tag that is not YAML's may be a password that begins with '!'.
        shown = f"the tag {node.tag!r} is" if node.tag.startswith("tag:") else "a tag, text after '!', is"
        self.problems.append((node, f"{shown} not allowed"))


def _truth(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _checked(text: str) -> str:
    if not is_encodable(text):
        raise ValueError("this text cannot be encoded as UTF-8")
    return text
