"""YAML nodes to plain data, with every problem on the way and none of PyYAML's objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from holdfast.config.positions import (
    BOOL,
    FLOAT,
    INT,
    LIST,
    MAP,
    MAX_DEPTH,
    MAX_NODES,
    NULL,
    STR,
    Problem,
)
from holdfast.config.secrets import is_encodable


class TooMuch(Exception):
    """Aliases unfold into more than a configuration can need; nothing else is worth reporting."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


class Values:
    """Reads nodes; `problems` says what could not be read, and those values are None."""

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

    def read(self, node: Node) -> Any:
        """The data of a node. Keys are always text, as they are written."""
        self._read_so_far += 1
        if id(node) in self._above:
            raise TooMuch((node, "an alias refers to the value that it is part of"))
        if self._read_so_far > MAX_NODES or len(self._above) > MAX_DEPTH:
            raise TooMuch((node, "aliases unfold into too many values here"))
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
                self.problems.append((key, f"the key {key.value!r} stands here twice"))
            else:
                data[key.value] = read
        return data

    def _scalar(self, node: ScalarNode) -> Any:
        read = self._scalars.get(node.tag)
        if read is None:
            return self._tag_refused(node)
        try:
            return read(node.value)
        except ValueError as error:
            # int() and float() speak of Python, and repeat what may be a secret.
            message = str(error) if node.tag == STR else f"this cannot be read as {node.tag.rpartition(':')[2]}"
            self.problems.append((node, message))
            return None

    def _tag_refused(self, node: Node) -> None:
        self.problems.append((node, f"the tag {node.tag!r} is not allowed"))


def _truth(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("neither true nor false")
    return text.lower() == "true"


def _checked(text: str) -> str:
    if not is_encodable(text):
        raise ValueError("this is not text that can be written as UTF-8")
    return text
