"""The digest of a pipeline's parsing: what changes files changes it, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import load_text
from holdfast.config.digest import digest_of
from holdfast.config.models import PipelineSettings
from holdfast.registry import Registry

FIXTURES = Path(__file__).parents[2] / "fixtures"
NO_ZEROS = "{topic}/{place}/{generation}_{partition}_{offset}.{ext}"


def digest(**changes: Any) -> str:
    source = {"objects": {"folder": "/in"}}
    given = {"source": source, "sinks": [{"files": {"root": "/out", "format": "jsonl"}}], **changes}
    return digest_of(PipelineSettings.model_validate(given))


def test_formats_layout_and_processors_decide() -> None:
    changed = [
        digest(sinks=[{"files": {"root": "/out", "format": "parquet"}}]),
        digest(sinks=[{"files": {"root": "/out", "format": {"jsonl": {"compression": "gzip"}}}}]),
        digest(sinks=[{"files": {"root": "/out", "format": "jsonl", "layout": NO_ZEROS}}]),
        digest(processors=[{"filter": {"where": "a > 1"}}]),
    ]
    assert len({digest(), *changed}) == 5


def test_a_setting_that_was_added_later_decides_only_where_it_is_used() -> None:
    # The digest of the version before `not_json` came: nodes of both share a generation.
    assert digest() == "3eb88294838224e320db217e971e5a05b40dd8b61dd1ec1e510e60c0f443cdef"
    stated, changed = ({"jsonl": {"not_json": what}} for what in ("dead_letter", "string"))
    assert digest(sinks=[{"files": {"root": "/out", "format": stated}}]) == digest()
    assert digest(sinks=[{"files": {"root": "/out", "format": changed}}]) != digest()


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


def test_digests_are_those_of_the_version_that_stored_them() -> None:
    stored: dict[str, dict[str, str]] = json.loads((FIXTURES / "b828bb8" / "digests.json").read_text())
    for name, entry in stored.items():
        # That version did not ask for the port; the source is not part of the digest.
        pipeline = entry["pipeline"].replace("servers: b,", "servers: 'b:1',")
        text = f"pipelines: {{p: {pipeline}}}"
        loaded = load_text(text, "pipeline.yaml", Registry.installed())
        assert digest_of(loaded.pipelines["p"]) == entry["digest"], name
