"""What the settings say of the sinks that are audited."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import assemble
from holdfast.audit.subject import Subject
from holdfast.errors import UsageError

KAFKA = "kafka: {bootstrap_servers: 'localhost:1', topics: [orders]}"
NAMES = ("txt", "txt.gz", "jsonl.zst", "avro", "orc", "seq", "parquet", "odd")
FILES = "- files: {root: ROOT/out, format: text, topics: [{match: 'raw-.*', format: raw}]}"


def audited(folder: Path, *, source: str = KAFKA, processors: str = "[]", sinks: str = FILES) -> list[Subject]:
    path = folder / "archive.yaml"
    path.write_text(
        f"source_coordination: {{partition_prefix: prod, store: {{sqlite: {{path: {folder}/leases.db}}}}}}\n"
        f"pipelines:\n  archive:\n    generation: 3\n    source: {{{source}}}\n    processors: {processors}\n"
        f"    sinks:\n      {sinks}\n".replace("ROOT", str(folder))
    )
    return assemble.audited(assemble.load_settings(path), "archive")


def test_a_sink_is_known_by_pipeline_name_root_and_generation(tmp_path: Path) -> None:
    (subject,) = audited(tmp_path)
    assert (subject.pipeline, subject.sink, subject.generation) == ("prod|archive", "files", 3)
    assert subject.place.root == f"{tmp_path}/out"
    assert (subject.offsets, subject.multiplies) == (True, False)


def test_the_format_is_that_of_the_topic(tmp_path: Path) -> None:
    (subject,) = audited(tmp_path)
    assert subject.format_of("orders").extension == "txt"
    assert subject.format_of("raw-orders").extension == "parquet"
    assert subject.format_of("orders") is subject.format_of("payments")


def test_files_of_other_settings_are_known_by_their_names(tmp_path: Path) -> None:
    (subject,) = audited(tmp_path)
    named = {name: [form.extension for form in subject.other_formats(f"orders/1_0_0.{name}")] for name in NAMES}
    assert named == {**{name: [name] for name in NAMES}, "parquet": ["parquet", "parquet"], "odd": []}


def test_items_of_other_sources_are_no_offsets(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (subject,) = audited(tmp_path, source=f"objects: {{folder: {tmp_path}/in, codec: text}}")
    assert not subject.offsets


@pytest.mark.parametrize(
    ("processors", "multiplies"),
    [
        ("[{parse: {time: kafka}}, {filter: {where: 'true'}}]", False),
        ("[{parse: {arrow: 'my.module:function'}}]", True),
        ("[{parse: {time: kafka, topics: [{match: a, arrow: 'my.module:function'}]}}]", True),
        ("[{python: {function: 'my.module:function'}}]", True),
    ],
)
def test_whether_a_record_may_become_several_rows_follows_from_the_processors(
    tmp_path: Path, processors: str, multiplies: bool
) -> None:
    (subject,) = audited(tmp_path, processors=processors)
    assert subject.multiplies == multiplies


def test_every_sink_of_files_is_audited(tmp_path: Path) -> None:
    two = "- {name: a, files: {root: ROOT/a}}\n      - {name: b, files: {root: ROOT/b}}"
    subjects = audited(tmp_path, sinks=two)
    assert [one.sink for one in subjects] == ["a", "b"]


def test_a_pipeline_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sink `files`"):
        audited(tmp_path, sinks="- tests.unit.cli.fakes:SINK:")
