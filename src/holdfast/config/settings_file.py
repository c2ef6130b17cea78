"""The file that settings were read from, so that a later check can point at the line that is wrong.

Spark finds a wrong column or expression only when it analyses the pipeline, long after the file was parsed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from yaml.nodes import Node, ScalarNode

from holdfast.config.yaml_positions import STR, Document, scalars_of
from holdfast.errors import ConfigError, Mark

Path = tuple[str | int, ...]

_QUOTED = re.compile(r"['\"`]([^'\"`]+)['\"`]")
_BLOCK = "|"


def text_digest(text: str) -> str:
    """Return a digest that identifies the text of a file: short, as nodes announce it."""
    return sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Fragment:
    """A part of an expression, as an error of Spark names it; line and column count from 0."""

    text: str
    line: int
    column: int
    """Where the text begins."""
    caret: int
    """The column to point at."""


@dataclass(frozen=True)
class SettingProblem:
    """What is wrong with a setting: its path in the file, and where in its text if that is known."""

    path: Path
    message: str
    fragment: Fragment | None = None


@dataclass(frozen=True)
class SettingsFile:
    """Name and text of the file. It is parsed only when something is wrong."""

    name: str
    text: str
    secrets: frozenset[str]

    @property
    def digest(self) -> str:
        """A digest that identifies this text."""
        return text_digest(self.text)

    """Secrets of the file in plain text; lines that are quoted do not show them."""

    def error(self, problems: Sequence[SettingProblem]) -> ConfigError:
        """Return the problems as one error, each with its line and column."""
        document = Document(self.name, self.text)
        lines = document.shown_lines(self.secrets)
        return ConfigError([(_mark(document, lines, problem), problem.message) for problem in problems])


def error_without_file(problems: Sequence[SettingProblem]) -> ConfigError:
    """Return the problems of settings that were made in code, each with the path of its setting."""
    return ConfigError(
        [(None, f"{'.'.join(str(step) for step in problem.path)}: {problem.message}") for problem in problems]
    )


def _mark(document: Document, lines: Sequence[str], problem: SettingProblem) -> Mark:
    position = document.find(problem.path)
    if problem.fragment is not None:
        for _, node in scalars_of(position.node):
            if _has(node, problem.fragment):
                line, column = _start(document, node, problem.fragment)
                return Mark(document.file, line + 1, column + 1, lines[line])
    # The last name of the path is that of a plugin, whose key says more than the first of its settings.
    return document.mark(_named_in(position.node, problem.message) or position.key or position.node, lines)


def _has(node: ScalarNode, fragment: Fragment) -> bool:
    lines = node.value.split("\n")
    return (
        node.tag == STR
        and fragment.line < len(lines)
        and lines[fragment.line].startswith(fragment.text, fragment.column)
    )


def _start(document: Document, node: ScalarNode, fragment: Fragment) -> tuple[int, int]:
    """Return line and column of the fragment, or those of the value where escapes or folding hide it."""
    begin, lines = node.start_mark, document.lines
    number = begin.line + fragment.line + (node.style == _BLOCK)
    if node.style == _BLOCK and number < len(lines):
        indent = lines[number].find(node.value.split("\n")[fragment.line])
    else:
        indent = begin.column + (node.style is not None) if fragment.line == 0 else -1
    if indent >= 0 and number < len(lines) and lines[number].startswith(fragment.text, indent + fragment.column):
        return number, indent + fragment.caret
    return begin.line, begin.column


def _named_in(node: Node, message: str) -> ScalarNode | None:
    """Return the first value below the node that the message quotes, such as the name of a column."""
    texts = [each for _, each in scalars_of(node) if each.tag == STR]
    for quoted in _QUOTED.findall(message):
        for each in texts:
            if quoted in {each.value, *_names_in(each.value)}:
                return each
    return None


def _names_in(text: str) -> set[str]:
    """Return the fields of a template such as `logs-{tenant}`."""
    return {name.partition(":")[0] for name in re.findall(r"\{([^{}]+)\}", text)}
