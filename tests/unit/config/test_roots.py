"""A root belongs to one sink: settings that give it to two are refused where the second one names it.

The simulator begins after settings are read and sinks are opened, so that it never meets such settings.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config.load import load_text
from holdfast.errors import ConfigError
from holdfast.registry import Registry

PIPELINE = """\
pipelines:
  orders:
    source: {kafka: {bootstrap_servers: "x:1", topics: [orders]}}
    sinks:
      - files: {root: ROOT/lake}
      - opensearch: {hosts: ["http://localhost:9200"], index: i, dead_letters: {file: LETTERS}}
  clicks:
    source: {kafka: {bootstrap_servers: "x:1", topics: [clicks]}}
    sinks:
      - files: {root: CLICKS}
"""


def problem(letters: str, clicks: str, folder: Path) -> str | None:
    """What is wrong with these settings, and where."""
    text = PIPELINE.replace("LETTERS", letters).replace("CLICKS", clicks).replace("ROOT", str(folder))
    try:
        load_text(text, "p.yaml", Registry.installed())
    except ConfigError as error:
        ((mark, message),) = error.problems
        assert mark is not None
        return f"{mark.file}:{mark.line}:{mark.column} {message}"
    return None


def test_roots_of_their_own_are_fine(tmp_path: Path) -> None:
    assert problem("ROOT/letters", "ROOT/clicks", tmp_path) is None
    assert problem("s3://lake/letters", "s3://lake/clicks", tmp_path) is None


@pytest.mark.parametrize("letters", ["ROOT/lake", "ROOT/lake/", "ROOT/other/../lake", "ROOT/./lake"])
def test_dead_letters_in_the_root_of_files_are_refused_however_it_is_written(letters: str, tmp_path: Path) -> None:
    found = problem(letters, "ROOT/clicks", tmp_path)
    assert found is not None
    assert found.startswith("p.yaml:6:87 ")
    assert "is already the root of sink 'files' of pipeline 'orders'" in found


def test_a_link_to_the_root_of_another_sink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    assert "is already the root of sink 'files'" in (problem("ROOT/link", "ROOT/clicks", tmp_path) or "")


def test_two_pipelines_never_share_a_root(tmp_path: Path) -> None:
    found = problem("s3://lake/a/", "s3://lake/a", tmp_path)
    assert found is not None
    assert found.startswith("p.yaml:10:23 ")
    assert "is already the root of sink 'opensearch' of pipeline 'orders'" in found


def test_a_root_inside_of_what_another_one_hides_is_refused(tmp_path: Path) -> None:
    found = problem("ROOT/lake/_holdfast/staging/orders/0", "ROOT/clicks", tmp_path)
    assert "must not lie in each other's folder `_holdfast`" in (found or "")
    assert "must not lie in" in (problem("s3://lake/a/_holdfast/dead", "s3://lake/a", tmp_path) or "")


OWN_OUTPUT = """\
pipelines:
  orders:
    source: {objects: {folder: FOLDER/in, EXTRA}}
    sinks: [{files: {root: ROOT}}]
"""


@pytest.mark.parametrize(
    ("root", "extra", "refused"),
    [
        ("in", "scan: once", True),
        ("in/out", "scan: once", True),
        ("in/../in/out", "scan: once", True),
        ("out", "scan: once", False),
        ("input", "scan: once", False),
        ("in/_out", "scan: once", False),
        ("in/out", "exclude: ['out/**']", False),
        ("in/out", "include: ['*.jsonl']", False),
        ("in/out", "include: ['*/*.jsonl']", True),
        ("in/out", "include: ['orders/**/*.jsonl', 'clicks/*']", False),
        ("in/orders/out", "include: ['orders/**/*.jsonl']", True),
    ],
)
def test_a_pipeline_does_not_read_its_own_output(root: str, extra: str, refused: bool, tmp_path: Path) -> None:
    text = OWN_OUTPUT.replace("EXTRA", extra).replace("ROOT", f"FOLDER/{root}").replace("FOLDER", str(tmp_path))
    if not refused:
        load_text(text, "p.yaml", Registry.installed())
        return
    with pytest.raises(ConfigError, match="is read by the source of this pipeline") as wrong:
        load_text(text, "p.yaml", Registry.installed())
    ((mark, _),) = wrong.value.problems
    assert mark is not None
    assert (mark.line, mark.column) == (4, 28)


SCANNED = """\
pipelines:
  orders:
    source: {{objects: {{buckets: [{bucket}], s3: {{endpoint_url: "http://s3:9000"}}}}}}
    sinks:
      - files: {{root: "{root}", s3: {{endpoint_url: "{endpoint}"}}}}
"""


@pytest.mark.parametrize(
    ("bucket", "root", "refused"),
    [
        ("{bucket: lake}", "s3://lake/out", True),
        ("{bucket: lake}", "s3://lake", True),
        ("{bucket: lake, include_prefix: [in/]}", "s3://lake/in/done", True),
        ("{bucket: lake, include_prefix: [out/2026/]}", "s3://lake/out", True),
        ("{bucket: lake, include_prefix: [in/]}", "s3://lake/out", False),
        ("{bucket: lake, include_prefix: [in/]}", "s3://lake/index", False),
        ("{bucket: lake, exclude: ['out/**']}", "s3://lake/out", False),
        ("{bucket: lake}", "s3://lakes/out", False),
    ],
)
def test_a_root_below_a_prefix_that_is_scanned_is_refused(bucket: str, root: str, refused: bool) -> None:
    text = SCANNED.format(bucket=bucket, root=root, endpoint="http://s3:9000")
    try:
        load_text(text, "p.yaml", Registry.installed())
    except ConfigError as error:
        ((mark, message),) = error.problems
        assert (mark and mark.line, "is read by the source" in message, refused) == (5, True, True)
    else:
        assert not refused


def test_a_bucket_of_the_same_name_elsewhere_is_another_one() -> None:
    text = SCANNED.format(bucket="{bucket: lake}", root="s3://lake/out", endpoint="http://other:9000")
    load_text(text, "p.yaml", Registry.installed())
