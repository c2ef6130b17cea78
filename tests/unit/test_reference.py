from __future__ import annotations

import pytest

from scripts import make_reference


@pytest.mark.parametrize("name", make_reference.PAGES)
def test_the_reference_says_what_the_code_says(name: str) -> None:
    written = (make_reference.FOLDER / name).read_text(encoding="utf-8")

    assert written == make_reference.page(name), "out of date: run python scripts/make_reference.py"


def test_there_is_no_page_that_nobody_makes() -> None:
    assert {path.name for path in make_reference.FOLDER.iterdir()} == set(make_reference.PAGES)
