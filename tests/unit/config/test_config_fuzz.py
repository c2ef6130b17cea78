"""Whatever stands in a file: settings come out, or one `ConfigError` that can be printed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.config import load, load_text
from holdfast.errors import ConfigError
from tests.unit.config.samples import REGISTRY

EVERYTHING = (Path(__file__).parent / "fixtures" / "everything.yaml").read_text()
SIGNS = [
    ": ",
    ":",
    "- ",
    "? ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "'",
    '"',
    "&a ",
    "*a",
    "!!",
    "!x ",
    "|",
    ">",
    "#",
    "<<",
    "%",
    "~",
]
SPACES = [" ", "  ", "\n", "\n  ", "\t", "\x85", "\u2028", "---\n", "...\n"]
TEXTS = ["a", "é", "${env:A}", "$${", "${", "\\U", "\\x", "0", "9" * 20, "1.5", "30s", "null"]
WORDS = ["node", "log", "pipelines", "source", "sinks", "files", "objects", "path", "password", "name"]
PIECES = st.sampled_from([*SIGNS, *SPACES, *TEXTS, *WORDS])


@contextmanager
def printable_refusal() -> Iterator[None]:
    refusal = None
    try:
        yield
    except ConfigError as error:
        refusal = error
    if refusal is not None:
        assert refusal.problems
        assert str(refusal).encode()


def check(text: str) -> None:
    with printable_refusal():
        load_text(text, "holdfast.yaml", REGISTRY, {"A": "sesame"})


@given(st.text())
@example("\ufeff")
@example('"\\ud800": 1')
@example("node: {name: '\\ud800'}")
def test_any_text(text: str) -> None:
    check(text)


@given(st.lists(PIECES, max_size=60).map("".join))
@settings(max_examples=500)
def test_any_mixture_of_yaml(text: str) -> None:
    check(text)


@given(st.integers(0, len(EVERYTHING) - 1), st.integers(0, 30), PIECES)
@settings(max_examples=300)
def test_any_damage_to_a_right_file(start: int, length: int, piece: str) -> None:
    check(EVERYTHING[:start] + piece + EVERYTHING[start + length :])


@given(st.binary())
@example(b"\xff\xfea\x00")
def test_any_bytes(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        with printable_refusal():
            load(file.name, REGISTRY, {})
