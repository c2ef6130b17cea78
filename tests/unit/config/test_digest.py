"""The digest of a pipeline's parsing: what changes files changes it, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.config.digest import digest_of
from holdfast.config.models import PipelineSettings


def digest(**changes: Any) -> str:
    source = {"objects": {"folder": "/in"}}
    given = {"source": source, "sinks": [{"files": {"root": "/out", "format": "jsonl"}}], **changes}
    return digest_of(PipelineSettings.model_validate(given))


def test_formats_layout_and_processors_decide() -> None:
    changed = [
        digest(sinks=[{"files": {"root": "/out", "format": "parquet"}}]),
        digest(sinks=[{"files": {"root": "/out", "format": {"jsonl": {"compression": "gzip"}}}}]),
        digest(sinks=[{"files": {"root": "/out", "format": "jsonl", "layout": "secor"}}]),
        digest(processors=[{"filter": {"where": "a > 1"}}]),
    ]
    assert len({digest(), *changed}) == 5


def test_roots_sizes_and_sources_do_not() -> None:
    assert digest() == digest(sinks=[{"files": {"root": "/elsewhere", "format": "jsonl", "max_open_files": 3}}])
    assert digest() == digest(source={"objects": {"folder": "/other"}}, generation=7)


def test_the_users_own_code_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    code = tmp_path / "digested_code.py"
    code.write_text("def clean(frame): return frame\n")
    use = {"processors": [{"python": {"function": "digested_code:clean"}}]}
    before = digest(**use)
    assert digest(**use) == before
    code.write_text("def clean(frame): return frame.limit(1)\n")
    assert digest(**use) != before
