"""Whatever stands in a file: settings come out, or one `ConfigError` that can be printed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.config import load, load_text
from holdfast.errors import ConfigError
from tests.unit.config.samples import REGISTRY

EVERYTHING = (Path(__file__).parent / "fixtures" / "everything.yaml").read_text()
PIECES = st.sampled_from(
    ["a", ":", " ", "\n", "  ", "- ", "{", "}", "[", "]", "'", '"', "&a ", "*a", "!!", "!x ", "|", ">", "#", ",", "?", "\t"]
    + ["<<", "%", "---\n", "...\n", "${env:A}", "$${", "${", "\\U", "\\x", "0", "9" * 20, "~", "null", "é", "\u2028", "\x85"]
    + ["node", "log", "pipelines", "source", "sinks", "files", "objects", "path", "password", "name", "30s", "1.5"]
)  # fmt: skip


def check(text: str) -> None:
    try:
        load_text(text, "holdfast.yaml", REGISTRY, {"A": "sesame"})
    except ConfigError as error:
        assert error.problems
        assert str(error).encode()


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
        try:
            load(file.name, REGISTRY, {})
        except ConfigError as error:
            assert error.problems
            assert str(error).encode()
