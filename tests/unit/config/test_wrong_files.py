"""The mistakes of newcomers, a file each in `wrong`: its first line is the only problem that is shown.

A list that grows with holdfast is written as `…` there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import load
from holdfast.errors import ConfigError
from holdfast.registry import Registry

FILES = sorted((Path(__file__).parent / "wrong").glob("*.yaml"))
REGISTRY = Registry.installed()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_mistake_is_shown_once_where_it_is_with_what_to_write(path: Path) -> None:
    expected = path.read_text().splitlines()[0].removeprefix("# ")
    with pytest.raises(ConfigError) as wrong:
        load(path, REGISTRY, {})
    shown = [f"{mark.line}:{mark.column} {message}" for mark, message in wrong.value.problems if mark]
    if expected.endswith("…"):
        shown = [f"{problem[: len(expected) - 1]}…" for problem in shown]
    assert shown == [expected]


def test_many_kinds_of_mistakes_are_tried() -> None:
    assert len(FILES) >= 200
