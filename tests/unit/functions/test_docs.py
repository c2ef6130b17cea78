"""The page about functions is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from holdfast.functions.settings import FunctionConfig

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "write-a-function.md").read_text()


def test_the_test_of_a_handler_passes() -> None:
    (code,) = re.findall(
        r"<!-- run by tests/unit/functions/test_docs.py -->\s*```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 (the page's own code, as a reader would paste it)
    names["test_handler"]()


def test_every_setting_is_on_the_page_with_the_names_that_nuclio_uses() -> None:
    for name, field in FunctionConfig.model_fields.items():
        assert f"`{name}`" in PAGE
        aliases = field.validation_alias
        for alias in [aliases] if isinstance(aliases, str) else getattr(aliases, "choices", []):
            assert f"`{alias}`" in PAGE
